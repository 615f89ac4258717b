//! `cachelane metrics` and clients that mean no good, or are many.

mod common;

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::metrics::{Response, Scene, ask, client, echo, get, scrape, series, value};
use flate2::read::GzDecoder;
use lab::testing::comes_true;

#[test]
fn the_form_is_the_one_that_the_client_asks_for() {
    let scene = Scene::new();
    let _relay = scene.relay(echo(), &[]);
    let metrics = scene.metrics();
    let scrape = |headers: &str| {
        ask(metrics.addr(), &format!("GET /metrics HTTP/1.1|Host: x|Connection: close{headers}"))
    };
    let plain = scrape("");
    assert_eq!(plain.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert!(!plain.text().contains("# EOF") && !plain.text().contains("# UNIT"));
    assert!(plain.text().contains("# TYPE cachelane_relay_bytes_total counter\n"));
    let open = scrape("|Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    let expected = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(open.headers["content-type"], expected);
    for line in [
        "# TYPE cachelane_relay_bytes counter\n",
        "# UNIT cachelane_relay_bytes bytes\n",
        "# TYPE cachelane_knob info\n",
    ] {
        assert!(open.text().contains(line), "{line} in {}", open.text());
    }
    assert!(open.text().ends_with("# EOF\n"));
    let packed = scrape("|Accept-Encoding: deflate, gzip");
    assert_eq!(packed.headers["content-encoding"], "gzip");
    assert!(packed.body.len() < plain.body.len() / 3, "{}", packed.body.len());
    let mut text = String::new();
    GzDecoder::new(&packed.body[..]).read_to_string(&mut text).expect("it is whole");
    assert!(series(&text).keys().eq(series(plain.text()).keys()));
    let head = ask(metrics.addr(), "HEAD /metrics HTTP/1.1|Host: x|Connection: close");
    assert_eq!(head.status, 200);
    assert!(head.headers["content-length"].parse::<usize>().expect("a number") > 1000);
}

#[test]
fn requests_that_are_none_of_ours_are_refused_with_the_reason() {
    let scene = Scene::new();
    let metrics = scene.metrics();
    let giant = format!("GET /metrics HTTP/1.1|Host: x|X: {}", "x".repeat(1 << 20));
    for (request, status) in [
        ("GET /other HTTP/1.1|Host: x|Connection: close", 404),
        ("GET /metrics/ HTTP/1.0", 404),
        ("POST /metrics HTTP/1.1|Host: x|Content-Length: 3", 405),
        ("DELETE / HTTP/1.1|Host: x|Connection: close", 405),
        ("GET /metrics HTTP/1.1", 400),
        ("GET /metrics HTTP/2.0|Host: x", 400),
        ("hello", 400),
        (&giant, 431),
        ("GET /metrics HTTP/1.0", 200),
        ("GET http://x/metrics HTTP/1.1|Host: x|Connection: close", 200),
        ("GET / HTTP/1.1|Host: x|Connection: close", 200),
    ] {
        let response = ask(metrics.addr(), request);
        let shown: String = request.chars().take(60).collect();
        assert_eq!(response.status, status, "{shown}");
        assert_eq!(response.headers["connection"], "close", "{shown}");
        assert_eq!(response.headers.contains_key("allow"), status == 405, "{shown}");
    }
    assert_eq!(get(metrics.addr(), "/-/healthy").text(), "ok\n");
}

#[test]
fn a_connection_serves_one_request_after_the_other_also_those_sent_ahead() {
    let scene = Scene::new();
    let metrics = scene.metrics();
    let stream = client(metrics.addr());
    let mut reader = BufReader::new(stream.try_clone().expect("a file"));
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    for _ in 0..3 {
        // Byte by byte, as the slowest that mean well.
        for byte in request.as_bytes() {
            (&stream).write_all(&[*byte]).expect("it reads");
        }
        let response = Response::read(&mut reader, false);
        assert!(response.text().contains("cachelane_build_info"));
        assert!(!response.headers.contains_key("connection"));
    }
    (&stream).write_all(request.repeat(5).as_bytes()).expect("it reads");
    (&stream)
        .write_all(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\nGET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        .expect("it reads");
    for _ in 0..5 {
        assert_eq!(Response::read(&mut reader, false).status, 200);
    }
    assert_eq!(Response::read(&mut reader, true).status, 200);
    assert_eq!(Response::read(&mut reader, false).status, 404);
}

#[test]
fn clients_that_never_finish_their_request_keep_nobody_out_and_are_given_up() {
    let scene = Scene::new();
    let metrics = scene.metrics();
    let begin = |_| {
        let mut stream = client(metrics.addr());
        // A header that goes on and on. The first may be given up already.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ");
        stream
    };
    // More than there is place for.
    let slow: Vec<TcpStream> = (0..1000).map(begin).collect();
    let begun = Instant::now();
    assert!(!scrape(metrics.addr()).is_empty());
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(metrics.status("Threads") < 16, "{}", metrics.status("Threads"));
    // All of them are given up in the end, though they are never silent.
    for stream in slow {
        let ended = |mut stream: &TcpStream| match stream.write_all(b"x") {
            Ok(()) => matches!(stream.peek(&mut [0]), Ok(0)),
            Err(_) => true,
        };
        stream.set_nonblocking(true).expect("an option");
        assert!(comes_true(|| ended(&stream)));
    }
    let all = scrape(metrics.addr());
    assert_eq!(value(&all, "cachelane_metrics_given_up_total", &[]), 1000.0);
}

#[test]
fn a_thousand_scrapes_at_once_are_all_answered_and_cost_few_rounds() {
    let scene = Scene::new();
    let _relay = scene.relay(echo(), &[]);
    let metrics = scene.metrics();
    let begin = |_| {
        let mut stream = client(metrics.addr());
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).expect("it reads");
        stream
    };
    let all: Vec<TcpStream> = (0..1000).map(begin).collect();
    for stream in all {
        let response = Response::read(&mut BufReader::new(stream), false);
        assert!(response.text().contains("cachelane_relay_accepted_total"));
    }
    let all = scrape(metrics.addr());
    assert_eq!(value(&all, "cachelane_metrics_given_up_total", &[]), 0.0);
    assert!(value(&all, "cachelane_metrics_rounds_total", &[]) < 500.0);
    assert!(metrics.status("Threads") < 16);
    assert!(metrics.status("VmHWM") < 200 << 10, "{} KiB", metrics.status("VmHWM"));
}

#[test]
fn clients_that_do_not_read_take_bounded_memory_and_keep_nobody_out() {
    let scene = Scene::new();
    let _relays: Vec<_> =
        (0..10).map(|n| scene.relay(echo(), &["--name", &n.to_string()])).collect();
    let metrics = scene.metrics();
    let flood = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(200);
    let flood = |_| {
        let mut stream = client(metrics.addr());
        stream.set_nonblocking(true).expect("an option");
        let _ = stream.write(flood.as_bytes());
        stream
    };
    let deaf: Vec<TcpStream> = (0..100).map(flood).collect();
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert!(!scrape(metrics.addr()).is_empty());
    }
    assert!(metrics.status("VmHWM") < 200 << 10, "{} KiB", metrics.status("VmHWM"));
    drop(deaf);
    assert!(comes_true(|| get(metrics.addr(), "/-/healthy").status == 200));
}
