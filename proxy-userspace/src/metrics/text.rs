//! Metrics as text: in the format that Prometheus has always read, which is also what
//! kube-proxy answers, or as OpenMetrics for those who ask for that.
//!
//! The library writes OpenMetrics. The older format differs in its comments alone: there a
//! counter is announced by its name in full, and there are neither units nor an end.

use std::fmt::{self, Write};

use prometheus_client::{encoding::text::encode, registry::Registry};

use crate::serve::{Answer, Content};

const OPEN_METRICS: &str = "application/openmetrics-text";

/// All metrics, in the format that the header `Accept` asks for.
pub(super) fn answer(registry: &Registry, accept: &str) -> Answer {
    match written(registry, format(accept)) {
        Ok((content, body)) => Answer::ok(content, body),
        Err(error) => super::broken(error),
    }
}

fn written(registry: &Registry, content: Content) -> Result<(Content, String), fmt::Error> {
    let mut text = String::new();
    encode(&mut text, registry)?;
    Ok((content, if content == Content::OpenMetrics { text } else { older(&text)? }))
}

/// The format with the highest weight (RFC 9110 §12.5.1), of equal ones the first.
fn format(accept: &str) -> Content {
    let mut best = (0.0, Content::Prometheus);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let content = match parts.next().unwrap_or_default() {
            OPEN_METRICS => Content::OpenMetrics,
            "text/plain" | "text/*" | "*/*" => Content::Prometheus,
            _ => continue,
        };
        let weight = parts.filter_map(|part| part.strip_prefix("q=")).filter_map(|q| q.parse().ok()).next();
        let weight = weight.unwrap_or(1.0);
        if weight > best.0 {
            best = (weight, content);
        }
    }
    best.1
}

/// OpenMetrics text in the words of the older format.
fn older(text: &str) -> Result<String, fmt::Error> {
    let mut older = String::with_capacity(text.len());
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // The name it goes with depends on the type, which comes next.
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            writeln!(older, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}")?;
        } else if !line.starts_with("# ") {
            writeln!(older, "{line}")?;
        }
    }
    Ok(older)
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::{counter::Counter, gauge::Gauge, histogram::Histogram};

    use super::*;
    use crate::meter::Meter;

    #[test]
    fn both_formats() {
        let mut registry = Registry::default();
        Meter::counter("a_total", &[], "As").register(&mut registry, Counter::<u64>::default());
        Meter::gauge("b_total", &[], "Bs").register(&mut registry, Gauge::<i64>::default());
        Meter::histogram("c_seconds", &[], "Cs").register(&mut registry, Histogram::new([0.5]));
        let older = "# HELP a_total As.\n# TYPE a_total counter\na_total 0\n\
                     # HELP b_total Bs.\n# TYPE b_total gauge\nb_total 0\n\
                     # HELP c_seconds Cs.\n# TYPE c_seconds histogram\n\
                     c_seconds_sum 0.0\nc_seconds_count 0\nc_seconds_bucket{le=\"0.5\"} 0\n\
                     c_seconds_bucket{le=\"+Inf\"} 0\n";
        assert_eq!(written(&registry, Content::Prometheus).unwrap().1, older);
        let open = written(&registry, Content::OpenMetrics).unwrap().1;
        assert!(open.starts_with("# HELP a As.\n# TYPE a counter\na_total 0\n"), "{open}");
        assert!(open.ends_with("# EOF\n"), "{open}");
    }

    #[test]
    fn the_format_is_chosen_by_weight() {
        use Content::{OpenMetrics, Prometheus};
        let check = |accept, expected| assert_eq!(format(accept), expected, "{accept}");
        check("", Prometheus);
        check("*/*", Prometheus);
        check("application/json", Prometheus);
        check("application/openmetrics-text; version=1.0.0", OpenMetrics);
        check("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3", OpenMetrics);
        check("application/openmetrics-text;q=0.3,text/plain;version=0.0.4;q=0.9,*/*;q=0.1", Prometheus);
        check("application/openmetrics-text;q=0", Prometheus);
    }
}
