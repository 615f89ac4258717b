//! What may be set of each backend while the relay runs, as text: `db1:5432=drain` or
//! `db1:5432=ready,weight=2`, several with spaces between them.

use std::fmt;
use std::str::FromStr;

use super::{BackendState, Backends};
use crate::Error;
use crate::config::Backend;

/// Settings of some backends, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSettings(Vec<Setting>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    /// As it stands in the configuration, without its options.
    backend: String,
    state: Option<BackendState>,
    weight: Option<u16>,
}

const EXPECTED: &str = "expected BACKEND=ready or BACKEND=drain, BACKEND=weight=0-256, or both with \
                        a comma between them";

impl FromStr for BackendSettings {
    type Err = Error;

    fn from_str(s: &str) -> Result<BackendSettings, Error> {
        s.split_whitespace().map(Setting::parse).collect::<Result<_, _>>().map(BackendSettings)
    }
}

impl Setting {
    fn parse(s: &str) -> Result<Setting, Error> {
        // There may be a = in a path.
        let parsed = s.match_indices('=').find_map(|(at, _)| Setting::of(&s[..at], &s[at + 1..]));
        let refuse = || Error::invalid(format!("setting '{s}' does not parse ({EXPECTED})"));
        parsed.ok_or_else(refuse)
    }

    fn of(backend: &str, settings: &str) -> Option<Setting> {
        let mut setting = Setting { backend: backend.into(), state: None, weight: None };
        for one in settings.split(',') {
            match one.strip_prefix("weight=") {
                Some(weight) => {
                    let weight = weight.parse().ok().filter(|w| *w <= Backend::MAX_WEIGHT);
                    setting.weight = Some(weight?);
                }
                None => setting.state = Some(one.parse().ok()?),
            }
        }
        Some(setting)
    }
}

impl fmt::Display for BackendSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Setting { backend, state, weight }) in self.0.iter().enumerate() {
            let state = state.map(|state| state.to_string());
            let weight = weight.map(|weight| format!("weight={weight}"));
            let settings: Vec<String> = state.into_iter().chain(weight).collect();
            let space = if n == 0 { "" } else { " " };
            write!(f, "{space}{backend}={}", settings.join(","))?;
        }
        Ok(())
    }
}

impl Backends {
    pub(crate) fn settings(&self) -> BackendSettings {
        let settings = self.specs.iter().map(|spec| Setting {
            backend: spec.backend.target.to_string(),
            state: Some(spec.state()),
            weight: Some(spec.weight()),
        });
        BackendSettings(settings.collect())
    }

    /// Sets what is named; all or nothing.
    pub(crate) fn set(&self, settings: &BackendSettings) -> Result<(), Error> {
        let named = |setting: &Setting| {
            let name = setting.backend.clone();
            self.specs.iter().filter(move |spec| spec.backend.target.to_string() == name)
        };
        for setting in &settings.0 {
            if named(setting).next().is_none() {
                let all = self.specs.iter().map(|spec| spec.backend.target.to_string());
                return Err(Error::invalid(format!(
                    "backend '{}' is none of this relay (expected {})",
                    setting.backend,
                    all.collect::<Vec<_>>().join(", ")
                )));
            }
        }
        for setting in &settings.0 {
            for spec in named(setting) {
                if let Some(state) = setting.state {
                    spec.set_state(state);
                }
                if let Some(weight) = setting.weight {
                    spec.set_weight(weight);
                }
            }
        }
        self.reschedule();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::config::Config;

    fn backends() -> Backends {
        let all = ["db1:5,weight=3", "10.0.0.1:80"].map(|b| b.parse::<Backend>().unwrap()).to_vec();
        let listen: SocketAddr = "127.0.0.1:1".parse().unwrap();
        Backends::new(&Config::new(vec![listen], all, [0].into_iter().collect()))
    }

    #[test]
    fn settings_are_written_as_they_are_read_and_leave_the_others_alone() {
        let backends = backends();
        let found = backends.settings();
        assert_eq!(found.to_string(), "db1:5=ready,weight=3 10.0.0.1:80=ready,weight=1");
        for (given, then) in [
            ("db1:5=drain", "db1:5=drain,weight=3 10.0.0.1:80=ready,weight=1"),
            ("10.0.0.1:80=weight=0", "db1:5=drain,weight=3 10.0.0.1:80=ready,weight=0"),
            ("db1:5=ready,weight=9", "db1:5=ready,weight=9 10.0.0.1:80=ready,weight=0"),
        ] {
            backends.set(&given.parse().unwrap()).unwrap();
            assert_eq!(backends.settings().to_string(), then);
        }
        backends.set(&found.to_string().parse().unwrap()).unwrap();
        assert_eq!(backends.settings(), found);
    }

    #[test]
    fn a_path_may_have_an_equals_sign() {
        let all = vec!["unix:/run/a=b,weight=2".parse::<Backend>().unwrap()];
        let listen: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let backends = Backends::new(&Config::new(vec![listen], all, [0].into_iter().collect()));
        let found = backends.settings().to_string();
        assert_eq!(found, "unix:/run/a=b=ready,weight=2");
        backends.set(&"unix:/run/a=b=drain".parse().unwrap()).unwrap();
        backends.set(&found.parse().unwrap()).unwrap();
        assert_eq!(backends.settings().to_string(), found);
    }

    #[test]
    fn a_bad_setting_changes_nothing_and_is_named() {
        let backends = backends();
        for (given, named) in [
            ("db1:5", "'db1:5'"),
            ("db1:5=gone", "'db1:5=gone'"),
            ("db1:5=weight=257", "0-256"),
            ("db1:5=drain,", "'db1:5=drain,'"),
        ] {
            let error = given.parse::<BackendSettings>().unwrap_err().to_string();
            assert!(error.contains(named), "{given}: {error}");
        }
        let before = backends.settings();
        let error = backends.set(&"db1:5=drain db2:5=drain".parse().unwrap()).unwrap_err();
        for part in ["'db2:5'", "db1:5, 10.0.0.1:80"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(backends.settings(), before);
    }
}
