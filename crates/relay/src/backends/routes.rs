//! Which backends a connection may go to, by the name that its TLS client asks for.
//!
//! Backends with the same names are one route, and share its connections. A name that stands in a
//! route as it is goes before one that a pattern of another stands for.

use crate::config::Backend;
use crate::tls;

/// A route by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route(pub(super) usize);

/// The names of each route. The first one has none: it is everybody else's, and may have no backend.
#[derive(Debug)]
pub(crate) struct Routes {
    names: Vec<Vec<String>>,
    /// Backends without names.
    has_default: bool,
}

impl Routes {
    pub(super) fn new(backends: &[Backend]) -> Routes {
        let mut names = vec![Vec::new()];
        for backend in backends {
            if !names.contains(&backend.names) {
                names.push(backend.names.clone());
            }
        }
        let has_default = backends.iter().any(|backend| backend.names.is_empty());
        Routes { names, has_default }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn of(&self, backend: &Backend) -> Route {
        let index = self.names.iter().position(|names| *names == backend.names);
        index.map_or(Route::default(), Route)
    }

    /// Whether it takes a name to know where a connection goes.
    pub(crate) fn ask_for_name(&self) -> bool {
        self.len() > 1
    }

    /// The route for a client that asks for `name`, in lower case, or for none. `None`: there is no
    /// backend for it.
    pub(crate) fn find(&self, name: Option<&str>) -> Option<Route> {
        let position = |fits: &dyn Fn(&String) -> bool| {
            self.names.iter().position(|names| names.iter().any(fits)).map(Route)
        };
        let named = name.and_then(|name| {
            let exactly = position(&|given| given == name);
            exactly.or_else(|| position(&|given| tls::matches(given, name)))
        });
        named.or_else(|| self.has_default.then(Route::default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(backends: &[&str]) -> Routes {
        let backends = backends.iter().map(|b| b.parse().unwrap()).collect::<Vec<_>>();
        Routes::new(&backends)
    }

    #[test]
    fn a_name_leads_to_the_backends_that_have_it_then_to_those_of_a_pattern_then_to_the_rest() {
        let routes = routes(&[
            "1.1.1.1:1,sni=*.example",
            "1.1.1.1:2",
            "1.1.1.1:3,sni=a.example,sni=c.example",
            "1.1.1.1:4,sni=a.example,sni=c.example",
        ]);
        assert_eq!(routes.len(), 3);
        for (name, route) in [
            (Some("a.example"), 2),
            (Some("c.example"), 2),
            (Some("b.example"), 1),
            (Some("example"), 0),
            (None, 0),
        ] {
            assert_eq!(routes.find(name), Some(Route(route)), "{name:?}");
        }
    }

    #[test]
    fn without_a_backend_for_everybody_a_strange_name_leads_nowhere() {
        let routes = routes(&["1.1.1.1:1,sni=a.example"]);
        assert_eq!(routes.find(Some("b.example")), None);
        assert_eq!(routes.find(None), None);
        assert!(routes.ask_for_name());
    }
}
