//! An HTTP server on loopback that behaves, and many that do not.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use cachelane_sources::{Error, ErrorKind, MeasureSpec, Meter, Result};
use trial::{Part, Value};

/// What the server does with one connection after it has read the request.
type Answer = Box<dyn Fn(&mut TcpStream) -> std::io::Result<()> + Send>;

/// Serves the answers, one a connection, and then no more. Its address.
fn serve(answers: Vec<Answer>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for answer in answers {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|got| got > 0)
            {
                request.push(byte[0]);
            }
            // The client may hang up at any time.
            let _ = answer(&mut stream).and_then(|()| stream.shutdown(Shutdown::Write));
        }
    });
    format!("http://{address}/metrics")
}

fn body(text: &str) -> Answer {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
    raw(&format!("{head}{text}"))
}

fn raw(text: &str) -> Answer {
    let text = text.to_owned();
    Box::new(move |stream| stream.write_all(text.as_bytes()))
}

fn counter(value: u32) -> String {
    format!("# TYPE n_total counter\nn_total{{a=\"1\"}} {value}\nn_total{{a=\"2\"}} 5\n")
}

fn spec(url: &str, selector: &str) -> MeasureSpec {
    format!("prom:{url}:{selector},higher").parse().expect("a measure")
}

fn numerator(value: Result<Value>) -> Result<f64> {
    match value? {
        Value::Part(Part { num, den }) => {
            assert!(den > 0.0);
            Ok(num)
        }
        other => panic!("{other:?}"),
    }
}

/// Opens a meter, reads it, reads it again when the server gives `answer`, and once more.
fn after(answer: Answer) -> (Error, Duration) {
    let answers =
        vec![body(&counter(1)), body(&counter(1)), body(&counter(2)), answer, body(&counter(9))];
    let url = serve(answers);
    let mut meter = Meter::open(&[spec(&url, "n_total")]).expect("it behaves at first");
    let start = meter.read().expect("no failure yet");
    let started = Instant::now();
    let hole = meter.read().expect("one failure is none");
    let took = started.elapsed();
    let end = meter.read().expect("it behaves again");
    let error = numerator(meter.values(&start, &hole).remove(0)).expect_err("the window is void");
    assert_eq!(error.kind(), ErrorKind::Void);
    let whole = numerator(meter.values(&start, &end).remove(0));
    assert_eq!(whole.expect("both ends were read"), 7.0);
    (error, took)
}

#[test]
fn a_counter_a_gauge_and_a_histogram_are_read_by_one_request() {
    let text = |n: u32| {
        format!(
            "# TYPE n_total counter\nn_total {n}\n# TYPE g gauge\ng {n}\n# TYPE h_seconds histogram\n\
             h_seconds_bucket{{le=\"1\"}} {n}\nh_seconds_bucket{{le=\"+Inf\"}} {n}\n# EOF\n"
        )
    };
    let chunked = |text: &str| {
        let (one, two) = text.split_at(20);
        raw(&format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{one}\r\n{:x};ext\r\n{two}\r\n0\r\n\r\n",
            one.len(),
            two.len()
        ))
    };
    let until_closed = |text: &str| raw(&format!("HTTP/1.0 200 OK\r\n\r\n{text}"));
    // A request to find the metrics, and one to try them.
    let answers = [body(&text(1)), body(&text(1)), chunked(&text(10)), until_closed(&text(14))];
    let url = serve(answers.into());
    let quantile = format!("p25:prom:{url}:h_seconds,lower").parse().expect("a measure");
    let specs = [spec(&url, "n_total"), spec(&url, "g"), quantile];
    let mut meter = Meter::open(&specs).expect("all are there");
    let (start, end) = (meter.read().expect("chunks"), meter.read().expect("until closed"));
    let mut values = meter.values(&start, &end).into_iter();
    assert_eq!(values.next().map(numerator).expect("three values").expect("a number"), 4.0);
    match values.next().expect("three values").expect("a level") {
        Value::Part(part) => assert!((part.ratio() - 12.0).abs() < 1e-9, "{part:?}"),
        other => panic!("{other:?}"),
    }
    match values.next().expect("three values").expect("a histogram") {
        Value::Histogram(histogram) => assert_eq!(histogram.quantile(0.25), Some(0.25)),
        other => panic!("{other:?}"),
    }
    assert_eq!(meter.measures()[2].quantile, 0.25);
    let units: Vec<String> = meter.measures().into_iter().map(|measure| measure.unit).collect();
    assert_eq!(units, ["/s", "", "s"]);
}

#[test]
fn an_answer_that_cannot_be_used_voids_the_window_with_its_reason() {
    for (answer, words) in [
        (raw("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"), "500"),
        (
            raw("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
            "302",
        ),
        (raw("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nn_total{a=\"1\"} 7\n"), "disconnected"),
        (raw("nonsense\r\n\r\n"), ""),
        (raw(""), ""),
        (body("n_total{a=\"1\"} x\n"), "line 1 of the answer"),
        (body("other 1\n"), "no series of n_total"),
        (body(&counter(0)), "reset: it went back from 2 to 0"),
        (Box::new(|stream| stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n\xff\xfe")), "not UTF-8"),
    ] {
        let (error, _) = after(answer);
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
}

#[test]
fn a_server_that_never_ends_is_left_after_its_time_or_its_length() {
    let silent: Answer = Box::new(|stream| {
        let mut end = [0];
        stream.read(&mut end).map(drop)
    });
    let slow: Answer = Box::new(|stream| {
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n")?;
        loop {
            stream.write_all(b"#")?;
            thread::sleep(Duration::from_millis(100));
        }
    });
    let endless: Answer = Box::new(|stream| {
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n")?;
        let line = [b"n_total{a=\"".as_slice(), &[b'x'; 60_000], b"\"} 1\n"].concat();
        loop {
            stream.write_all(&line)?;
        }
    });
    for (what, answer, words) in [
        ("silent", silent, &["timeout"][..]),
        ("slow", slow, &["timeout"]),
        // On a busy machine its time may be over first.
        ("endless", endless, &["limit", "timeout"]),
    ] {
        let (error, took) = after(answer);
        let error = error.to_string();
        assert!(words.iter().any(|word| error.contains(word)), "{what}: {error}");
        assert!(took < Duration::from_secs(30), "{what}: given up after {took:?}");
    }
}

#[test]
fn an_endpoint_that_is_not_there_is_said_at_once() {
    let url = serve(Vec::new());
    let error = Meter::open(&[spec(&url, "n_total")]).err().expect("nobody listens");
    assert!(error.to_string().contains(&url), "{error}");
    let url = serve(vec![body("# TYPE nn_total counter\nnn_total 1\n")]);
    let error = Meter::open(&[spec(&url, "n_total")]).err().expect("no such metric");
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(error.to_string().contains("similar: nn_total"), "{error}");
}

#[test]
fn an_endpoint_that_stays_away_ends_the_measuring() {
    let url = serve(vec![body(&counter(1)), body(&counter(1)), body(&counter(1))]);
    let mut meter = Meter::open(&[spec(&url, "n_total")]).expect("it behaves at first");
    meter.read().expect("it still does");
    let failed = (1..20).find_map(|reading| meter.read().err().map(|error| (reading, error)));
    let (reading, error) = failed.expect("nobody listens any more");
    assert_eq!(reading, 6, "{error}");
    assert!(error.to_string().contains(&url), "{error}");
}
