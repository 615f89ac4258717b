//! Metrics of a Prometheus endpoint.
//!
//! Nothing that the endpoint sends is believed beyond limits: an answer may take 2 s in all and
//! have 16 MiB. One that is late, too long or makes no sense voids the window.

mod exposition;
mod fetch;
mod selector;
mod series;

use fetch::Endpoint;
pub(crate) use selector::Selector;
use series::Metric;

use crate::source::Source;
use crate::{Quantity, Result, Value};

/// Metrics of one endpoint, read by one request.
pub(crate) struct Prom {
    endpoint: Endpoint,
    metrics: Vec<Metric>,
    quantities: Vec<Quantity>,
}

impl Prom {
    /// Asks the endpoint once, to see that it has the metrics and what they are.
    pub(crate) fn open(url: &str, selectors: &[Selector]) -> Result<Self> {
        let endpoint = Endpoint::new(url);
        let text = endpoint.fetch()?;
        let found = selectors.iter().map(|selector| Metric::find(url, selector, &text));
        let metrics: Vec<Metric> = found.collect::<Result<_>>()?;
        let quantities = metrics.iter().map(|metric| metric.quantity(url)).collect();
        Ok(Self { endpoint, metrics, quantities })
    }
}

impl Source for Prom {
    fn quantities(&self) -> &[Quantity] {
        &self.quantities
    }

    fn read(&mut self) -> Result<Vec<Value>> {
        let text = self.endpoint.fetch()?;
        self.metrics.iter().map(|metric| metric.value(&text)).collect()
    }
}
