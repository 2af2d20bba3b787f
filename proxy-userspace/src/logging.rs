//! Sets up the log: format, levels, and the way out for what eBPF programs log.

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::config::{DatapathLevel, LogFormat, Logging};

/// Installs the log for the whole process. Lines go to standard error.
pub fn init(config: &Logging) -> Result<()> {
    let builder = tracing_subscriber::fmt().with_env_filter(filter(config)?).with_writer(std::io::stderr);
    match config.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    }
    .map_err(|error| anyhow::anyhow!("cannot set up the log: {error}"))
}

/// The operator's levels, with those of the eBPF programs beside them: they have their
/// own switch, and asking for them must not require knowing the names of our modules.
fn filter(config: &Logging) -> Result<EnvFilter> {
    let filter = EnvFilter::try_new(&config.level)
        .with_context(|| format!("log level {:?} is neither a level nor module=level", config.level))?;
    if config.datapath_level == DatapathLevel::Off {
        return Ok(filter);
    }
    let directive = format!("proxy_ebpf={}", config.datapath_level.name());
    Ok(filter.add_directive(directive.parse().context("the directive of the eBPF programs")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_directives() {
        let config = |level: &str, datapath_level| Logging {
            format: LogFormat::Json,
            level: level.into(),
            datapath_level,
        };
        let text = |config: Logging| filter(&config).map(|f| f.to_string());
        assert_eq!(text(config("info", DatapathLevel::Off)).unwrap(), "info");
        assert_eq!(text(config("info", DatapathLevel::Debug)).unwrap(), "proxy_ebpf=debug,info");
        assert!(text(config("a=b=c", DatapathLevel::Off)).is_err());
    }
}
