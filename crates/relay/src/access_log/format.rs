//! What a line says. The text is HAProxy's `tcplog` with two fields more at its end:
//! `%ci:%cp [%t] %ft %b/%s %Tw/%Tc/%Tt %B %ts %ac/%fc/%bc/%sc/%rc %sq/%bq up=%U first=MS`.

use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::LogFormat;
use crate::session::{Client, Record, Session};

/// HAProxy's name for the group that a server belongs to; here all backends are one.
const GROUP: &str = "relay";
const NO_SERVER: &str = "<NOSRV>";

#[derive(Debug)]
pub(super) struct Formatter {
    format: LogFormat,
    listeners: Vec<String>,
}

impl Formatter {
    pub(super) fn new(format: LogFormat, listeners: Vec<String>) -> Formatter {
        Formatter { format, listeners }
    }

    /// Adds the line of a connection to `to`.
    pub(super) fn line(&self, record: &Record, to: &mut Vec<u8>) {
        let since = Instant::now().saturating_duration_since(record.session.accepted);
        let accepted = SystemTime::now() - since;
        let listener = self.listeners.get(record.session.listener as usize);
        let listener = listener.map_or("-", String::as_str);
        match self.format {
            LogFormat::Text => text(record, accepted, listener, to),
            LogFormat::Json => object(record, accepted, listener, to),
        }
        to.push(b'\n');
    }
}

fn text(record: &Record, accepted: SystemTime, listener: &str, to: &mut Vec<u8>) {
    let Record { session, bytes: [up, down], cause, stage, .. } = record;
    let ([all, here], [leased, at_server]) = (record.active, record.leased);
    let client = session.client.map_or("unix:0".into(), |client| client.to_string());
    let server = session.backend.as_ref().map_or(NO_SERVER.into(), |addr| addr.to_string());
    let ms = |time: Option<Duration>| time.map_or(-1, |time| time.as_millis() as i64);
    // Into memory, which does not fail.
    let _ = write!(
        to,
        "{client} [{}] {listener} {GROUP}/{server} {}/{}/{} {down} {}{stage} \
         {all}/{here}/{leased}/{at_server}/{} 0/0 up={up} first={}",
        date(accepted),
        ms(record.waited()),
        ms(session.connecting()),
        record.total.as_millis(),
        cause.letter(),
        session.attempts.saturating_sub(1),
        ms(session.answering()),
    );
    if let Some(uid) = uid(session) {
        let _ = write!(to, " uid={uid}");
    }
}

/// The user at the other end of a Unix socket.
fn uid(session: &Session) -> Option<u32> {
    match session.client {
        Some(Client::Unix { uid, .. }) => uid,
        Some(Client::Ip(_)) | None => None,
    }
}

fn object(record: &Record, accepted: SystemTime, listener: &str, to: &mut Vec<u8>) {
    let Record { session, bytes: [up, down], cause, stage, .. } = record;
    let ([all, here], [leased, at_server]) = (record.active, record.leased);
    let ms = |time: Duration| time.as_micros() as f64 / 1000.0;
    let line = json!({
        "time": humantime::format_rfc3339_millis(accepted).to_string(),
        "client": session.client.map(|client| client.to_string()),
        "client_uid": uid(session),
        "listener": listener,
        "backend": session.backend.as_ref().map(|addr| addr.to_string()),
        "wait_ms": record.waited().map(ms),
        "connect_ms": session.connecting().map(ms),
        "first_byte_ms": session.answering().map(ms),
        "total_ms": ms(record.total),
        "bytes_up": up,
        "bytes_down": down,
        "state": format!("{}{stage}", cause.letter()),
        "cause": cause.name(),
        "connections": all,
        "listener_connections": here,
        "other_backend_connections": leased,
        "other_connections_of_backend": at_server,
        "retries": session.attempts.saturating_sub(1),
    });
    let _ = write!(to, "{line}");
}

/// As HAProxy writes it, but in UTC: `06/Feb/2009:12:12:51.443`.
fn date(time: SystemTime) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let iso = humantime::format_rfc3339_millis(time).to_string();
    let month = iso[5..7].parse::<usize>().ok().and_then(|month| MONTHS.get(month - 1));
    format!("{}/{}/{}:{}", &iso[8..10], month.unwrap_or(&"Jan"), &iso[..4], &iso[11..23])
}

/// What comes before a line in a syslog message, for a daemon on this host (RFC 3164 as in
/// syslog(3)): facility `local0`, severity `info`.
pub(super) fn syslog_header(now: SystemTime) -> String {
    const LOCAL0_INFO: u8 = 16 << 3 | 6;
    let date = date(now);
    let (day, month, time) = (&date[..2], &date[3..6], &date[12..20]);
    let day = day.strip_prefix('0').map_or(day.to_owned(), |day| format!(" {day}"));
    format!("<{LOCAL0_INFO}>{month} {day} {time} cachelane[{}]: ", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::Cause;

    fn record() -> Record {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let client = "[::ffff:10.0.1.2]:33313".parse().ok().map(Client::Ip);
        let mut session = Session::new(client, 0, start);
        let backend = "127.0.0.1:8000".parse().unwrap();
        session.seeks(at(1));
        session.asks("127.0.0.1:7000".parse().unwrap());
        session.asks(backend);
        session.is_connected(at(4));
        session.is_answered(at(11));
        Record {
            session,
            total: Duration::from_millis(5007),
            bytes: [34, 212],
            cause: Cause::Normal,
            stage: '-',
            active: [5, 4],
            leased: [3, 2],
        }
    }

    fn line(format: LogFormat, record: &Record) -> String {
        let mut line = Vec::new();
        Formatter::new(format, vec!["[::]:80".into()]).line(record, &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_line_of_text_is_what_parsers_of_tcplog_expect() {
        let said = line(LogFormat::Text, &record());
        let (before, after) = said.split_once(" [").unwrap();
        let (date, after) = after.split_once("] ").unwrap();
        assert_eq!(before, "10.0.1.2:33313");
        assert_eq!(date.len(), "06/Feb/2009:12:12:51.443".len(), "{date}");
        let rest = "[::]:80 relay/127.0.0.1:8000 1/3/5007 212 -- 5/4/3/2/1 0/0 up=34 first=7\n";
        assert_eq!(after, rest);
    }

    #[test]
    fn what_did_not_come_to_pass_is_minus_one_or_null() {
        let session = Session::new(None, 0, Instant::now());
        let none = Record { session, cause: Cause::Proxy, stage: 'R', ..record() };
        let said = line(LogFormat::Text, &none);
        assert!(said.starts_with("unix:0 ["), "{said}");
        assert!(said.contains(" relay/<NOSRV> -1/-1/5007 212 PR "), "{said}");
        let object: serde_json::Value =
            serde_json::from_str(&line(LogFormat::Json, &none)).unwrap();
        for name in ["client", "backend", "wait_ms", "connect_ms", "first_byte_ms"] {
            assert!(object[name].is_null(), "{name}: {object}");
        }
    }

    #[test]
    fn a_client_of_a_unix_socket_is_a_process_and_its_user() {
        let client = Some(Client::Unix { pid: 4711, uid: Some(33) });
        let mut session = Session::new(client, 0, Instant::now());
        session.asks("unix:/run/x.sock".parse().unwrap());
        let unix = Record { session, ..record() };
        let said = line(LogFormat::Text, &unix);
        assert!(said.starts_with("unix:4711 [") && said.ends_with(" uid=33\n"), "{said}");
        assert!(said.contains(" relay/unix:/run/x.sock "), "{said}");
        let object: serde_json::Value =
            serde_json::from_str(&line(LogFormat::Json, &unix)).unwrap();
        assert_eq!((&object["client"], &object["client_uid"]), (&json!("unix:4711"), &json!(33)));
        assert_eq!(object["backend"], "unix:/run/x.sock");
    }

    #[test]
    fn an_object_has_the_same_and_exact_times() {
        let object: serde_json::Value =
            serde_json::from_str(&line(LogFormat::Json, &record())).unwrap();
        assert_eq!(object["client"], "10.0.1.2:33313");
        assert_eq!((&object["bytes_up"], &object["bytes_down"]), (&json!(34), &json!(212)));
        assert_eq!((&object["connect_ms"], &object["total_ms"]), (&json!(3.0), &json!(5007.0)));
        assert_eq!((&object["state"], &object["cause"]), (&json!("--"), &json!("normal")));
    }

    #[test]
    fn dates_are_as_haproxy_and_syslog_write_them() {
        let time = humantime::parse_rfc3339("2009-02-06T12:12:51.443Z").unwrap();
        assert_eq!(date(time), "06/Feb/2009:12:12:51.443");
        let header = syslog_header(time);
        assert!(header.starts_with("<134>Feb  6 12:12:51 cachelane["), "{header}");
    }
}
