//! HTTP/1.0 and 1.1, as far as a scraper needs it: requests without a body, and answers of which the
//! length is known. Bytes in, bytes out, no I/O.

use httparse::{EMPTY_HEADER, Error, Header, Status};

use super::families::Form;

/// The most bytes of a request's head.
pub(super) const MAX_HEAD: usize = 8 * 1024;

/// The most headers.
const MAX_HEADERS: usize = 64;

const PAGE: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><title>cachelane</title></head>\n\
    <body><h1>cachelane</h1>\n<p><a href=\"/metrics\">Metrics</a> of the cachelane processes of this \
    host</p></body></html>\n";

/// What a client has sent so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Not a whole head yet.
    Part,
    /// A whole one, of so many bytes.
    Whole(Request, usize),
    /// Something that is none.
    Bad(Refusal),
}

/// A request, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) what: What,
    /// Whether only the head of the answer is wanted.
    pub(super) head: bool,
    /// Whether the connection goes on after the answer.
    pub(super) keep: bool,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// All metrics, in this form.
    Metrics(Form),
    /// Something that is always the same.
    Page { content_type: &'static str, body: &'static str },
    /// Something that there is not.
    Refused(Refusal),
}

/// Why there is nothing to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Malformed,
    NotFound,
    Method,
    TooLarge,
    /// This host, rather than the client, is at fault.
    Failed,
}

impl Refusal {
    fn status(self) -> &'static str {
        match self {
            Refusal::Malformed => "400 Bad Request",
            Refusal::NotFound => "404 Not Found",
            Refusal::Method => "405 Method Not Allowed",
            Refusal::TooLarge => "431 Request Header Fields Too Large",
            Refusal::Failed => "500 Internal Server Error",
        }
    }
}

/// Reads the first request of these bytes.
pub(super) fn parse(bytes: &[u8]) -> Asked {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Complete(length)) if length <= MAX_HEAD => match understand(&request) {
            Some(request) => Asked::Whole(request, length),
            None => Asked::Bad(Refusal::Malformed),
        },
        Ok(Status::Partial) if bytes.len() < MAX_HEAD => Asked::Part,
        Ok(_) | Err(Error::TooManyHeaders) => Asked::Bad(Refusal::TooLarge),
        Err(_) => Asked::Bad(Refusal::Malformed),
    }
}

fn understand(request: &httparse::Request<'_, '_>) -> Option<Request> {
    let (method, target, version) = (request.method?, request.path?, request.version?);
    let values = |name: &'static str| {
        let is_it = move |header: &&Header<'_>| header.name.eq_ignore_ascii_case(name);
        let found = request.headers.iter().filter(is_it);
        found.filter_map(|header| std::str::from_utf8(header.value).ok())
    };
    if version == 1 && values("host").count() != 1 {
        return None;
    }
    // A body is not read, so where the next request would begin nobody knows.
    let has_body = values("transfer-encoding").next().is_some()
        || values("content-length").any(|length| length.trim() != "0");
    let closes = values("connection").any(|value| has_token(value, "close"));
    let accept: Vec<&str> = values("accept").collect();
    let gzip = values("accept-encoding").any(|value| quality(value, "gzip") > 0.0);
    let form = Form { open: wants_open(&accept.join(",")), gzip };
    let what = match (path(target), method) {
        ("/metrics" | "/" | "/-/healthy", "GET" | "HEAD") => page(path(target), form),
        ("/metrics" | "/" | "/-/healthy", _) => What::Refused(Refusal::Method),
        _ => What::Refused(Refusal::NotFound),
    };
    let keep = version == 1 && !closes && !has_body;
    Some(Request { what, head: method == "HEAD", keep })
}

fn page(path: &str, form: Form) -> What {
    match path {
        "/metrics" => What::Metrics(form),
        "/" => What::Page { content_type: "text/html; charset=utf-8", body: PAGE },
        _ => What::Page { content_type: "text/plain; charset=utf-8", body: "ok\n" },
    }
}

/// The path of a target, which may be a whole URL (RFC 9112, 3.2.2).
fn path(target: &str) -> &str {
    let rest = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    rest.split('?').next().unwrap_or(rest)
}

/// Whether a list has this word.
fn has_token(list: &str, word: &str) -> bool {
    list.split(',').any(|one| one.trim().eq_ignore_ascii_case(word))
}

/// Whether a client would rather have OpenMetrics than Prometheus' own text.
fn wants_open(accept: &str) -> bool {
    let open = quality(accept, "application/openmetrics-text");
    open > 0.0 && open >= quality(accept, "text/plain")
}

/// How much something is wanted, 0 to 1: the most that the list says of it.
fn quality(list: &str, what: &str) -> f64 {
    let one = |one: &str| {
        let mut parts = one.split(';').map(str::trim);
        parts.next().filter(|name| name.eq_ignore_ascii_case(what))?;
        let q = parts.find_map(|part| part.strip_prefix("q="));
        Some(q.map_or(1.0, |q| q.parse().unwrap_or(0.0)))
    };
    list.split(',').filter_map(one).fold(0.0, f64::max)
}

/// The head of an answer that was refused, and its body.
pub(super) fn refusal(refusal: Refusal, why: &str, keep: bool) -> (Vec<u8>, Vec<u8>) {
    let status = refusal.status();
    let body = if why.is_empty() { format!("{status}\n") } else { format!("{status}: {why}\n") };
    let allow = if refusal == Refusal::Method { "Allow: GET, HEAD\r\n" } else { "" };
    let head = head(status, "text/plain; charset=utf-8", body.len(), allow, keep);
    (head, body.into_bytes())
}

/// The head of an answer with metrics.
pub(super) fn metrics_head(form: Form, length: usize, keep: bool) -> Vec<u8> {
    let more = match form.gzip {
        true => "Vary: Accept, Accept-Encoding\r\nContent-Encoding: gzip\r\n",
        false => "Vary: Accept, Accept-Encoding\r\n",
    };
    head("200 OK", form.content_type(), length, more, keep)
}

/// The head of an answer that is always the same.
pub(super) fn page_head(content_type: &str, length: usize, keep: bool) -> Vec<u8> {
    head("200 OK", content_type, length, "", keep)
}

fn head(status: &str, content_type: &str, length: usize, more: &str, keep: bool) -> Vec<u8> {
    let close = if keep { "" } else { "Connection: close\r\n" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         {more}{close}\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Form = Form { open: false, gzip: false };

    fn asked(head: &str) -> Asked {
        parse(format!("{head}\r\n\r\n").replace('|', "\r\n").as_bytes())
    }

    fn request(head: &str) -> Request {
        match asked(head) {
            Asked::Whole(request, _) => request,
            other => panic!("{head}: {other:?}"),
        }
    }

    #[test]
    fn paths_and_methods_decide() {
        for (head, expected) in [
            ("GET /metrics HTTP/1.1|Host: x", What::Metrics(PLAIN)),
            ("HEAD /metrics HTTP/1.1|Host: x", What::Metrics(PLAIN)),
            ("GET /metrics?name[]=a HTTP/1.0", What::Metrics(PLAIN)),
            ("GET http://x:1/metrics HTTP/1.1|Host: x:1", What::Metrics(PLAIN)),
            ("POST /metrics HTTP/1.1|Host: x", What::Refused(Refusal::Method)),
            ("GET /metrics/ HTTP/1.1|Host: x", What::Refused(Refusal::NotFound)),
            ("DELETE /other HTTP/1.1|Host: x", What::Refused(Refusal::NotFound)),
        ] {
            assert_eq!(request(head).what, expected, "{head}");
        }
        for path in ["/", "/-/healthy"] {
            let found = request(&format!("GET {path} HTTP/1.1|Host: x")).what;
            assert!(matches!(found, What::Page { .. }), "{path}");
        }
    }

    #[test]
    fn a_connection_goes_on_where_both_ends_know_where_the_next_request_begins() {
        for (head, keep) in [
            ("GET / HTTP/1.1|Host: x", true),
            ("GET / HTTP/1.1|host: x|Connection: foo, Close", false),
            ("GET / HTTP/1.0", false),
            ("POST / HTTP/1.1|Host: x|Content-Length: 5", false),
            ("POST / HTTP/1.1|Host: x|Transfer-Encoding: chunked", false),
            ("GET / HTTP/1.1|Host: x|Content-Length: 0", true),
        ] {
            assert_eq!(request(head).keep, keep, "{head}");
        }
    }

    #[test]
    fn the_form_is_what_the_client_would_rather_have() {
        let prometheus = "application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, open) in [
            (prometheus, true),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text;q=0", false),
            ("application/openmetrics-text; q=0.4, text/plain", false),
        ] {
            let found = request(&format!("GET /metrics HTTP/1.1|Host: x|Accept: {accept}")).what;
            assert_eq!(found, What::Metrics(Form { open, gzip: false }), "{accept}");
        }
        for (encoding, gzip) in [("gzip, deflate", true), ("GZIP;q=0.1", true), ("gzip;q=0", false)]
        {
            let head = format!("GET /metrics HTTP/1.1|Host: x|Accept-Encoding: {encoding}");
            assert_eq!(
                request(&head).what,
                What::Metrics(Form { open: false, gzip }),
                "{encoding}"
            );
        }
    }

    #[test]
    fn what_is_no_request_is_refused_and_what_is_not_whole_is_waited_for() {
        for (head, refusal) in [
            ("GET / HTTP/1.1", Refusal::Malformed),
            ("GET / HTTP/1.1|Host: x|Host: y", Refusal::Malformed),
            ("GET / HTTP/2.0|Host: x", Refusal::Malformed),
            ("\0", Refusal::Malformed),
            (&format!("GET / HTTP/1.1|Host: {}", "x".repeat(MAX_HEAD)), Refusal::TooLarge),
            (&format!("GET / HTTP/1.1{}", "|a: b".repeat(MAX_HEADERS + 1)), Refusal::TooLarge),
        ] {
            assert_eq!(asked(head), Asked::Bad(refusal), "{head}");
        }
        let whole = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), Asked::Part, "{length}");
        }
        let Asked::Whole(_, length) = parse(&[&whole[..], b"GET"].concat()) else {
            panic!("whole")
        };
        assert_eq!(length, whole.len());
        assert_eq!(parse(&[b'G'; MAX_HEAD]), Asked::Bad(Refusal::TooLarge));
    }
}
