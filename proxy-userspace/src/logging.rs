//! Sets up the log: format, levels, and the way out for what eBPF programs log.

use std::{io::IsTerminal, sync::OnceLock};

use anyhow::{Context, Result};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use crate::config::{DatapathLevel, LogFormat, Logging};

/// Puts another filter in the place of the first.
type Filters = Box<dyn Fn(EnvFilter) -> Result<()> + Send + Sync>;

static FILTERS: OnceLock<Filters> = OnceLock::new();

/// Installs the log for the whole process. Lines go to standard error.
pub fn init(config: &Logging) -> Result<()> {
    let stderr = std::io::stderr;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(config)?)
        .with_ansi(stderr().is_terminal())
        .with_writer(stderr);
    let (filters, installed): (Filters, _) = match config.format {
        LogFormat::Text => {
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            (Box::new(move |filter| Ok(handle.reload(filter)?)), builder.try_init())
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let handle = builder.reload_handle();
            (Box::new(move |filter| Ok(handle.reload(filter)?)), builder.try_init())
        }
    };
    installed.map_err(|error| anyhow::anyhow!("cannot set up the log: {error}"))?;
    // Only the first log can be installed.
    let _ = FILTERS.set(filters);
    Ok(())
}

/// Changes the level of the log that was installed.
pub fn set_level(config: &Logging) -> Result<()> {
    let filters = FILTERS.get().context("there is no log")?;
    filters(filter(config)?)
}

/// A plain level is meant for our own modules: libraries describe every instruction they
/// relocate and every watch they retry. Who wants that names them.
fn filter(config: &Logging) -> Result<EnvFilter> {
    let directives = match config.level.parse::<LevelFilter>() {
        Ok(level) => {
            let others = level.min(LevelFilter::WARN);
            format!(
                "{others},kube_runtime={},proxy_userspace={level},shunt={level}",
                others.min(LevelFilter::ERROR)
            )
        }
        Err(_) => config.level.clone(),
    };
    let filter = EnvFilter::try_new(&directives)
        .with_context(|| format!("log level {:?} is neither a level nor module=level", config.level))?;
    if config.datapath_level == DatapathLevel::Off {
        return Ok(filter);
    }
    // The eBPF programs have a switch of their own.
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
        let text = |config: Logging| {
            let filter = filter(&config).map(|f| f.to_string())?;
            let mut directives: Vec<_> = filter.split(',').map(str::to_owned).collect();
            directives.sort();
            anyhow::Ok(directives.join(","))
        };
        let plain = "kube_runtime=error,proxy_userspace=info,shunt=info,warn";
        assert_eq!(text(config("info", DatapathLevel::Off)).unwrap(), plain);
        let datapath = "kube_runtime=error,proxy_ebpf=debug,proxy_userspace=info,shunt=info,warn";
        assert_eq!(text(config("INFO", DatapathLevel::Debug)).unwrap(), datapath);
        assert_eq!(text(config("warn,kube=debug", DatapathLevel::Off)).unwrap(), "kube=debug,warn");
        let off = "kube_runtime=off,off,proxy_userspace=off,shunt=off";
        assert_eq!(text(config("off", DatapathLevel::Off)).unwrap(), off);
        assert!(text(config("a=b=c", DatapathLevel::Off)).is_err());
    }
}
