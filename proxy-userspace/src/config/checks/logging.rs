//! The rules of `logging`, which kube-proxy shares with all components.

use crate::config::{
    errors::Problems,
    kube_proxy::{KubeProxyConfiguration, LoggingOptions, VmoduleItem},
};

const NOT_TOO_VERBOSE: &str = "must be at most 2147483647";

pub(super) fn check(file: &KubeProxyConfiguration, problems: &mut Problems) {
    let logging = &file.logging;
    let is_text = ["", "text"].contains(&logging.format.as_str());
    problems.check(is_text || logging.format == "json", "logging.format", "must be text or json");
    problems.check(i32::try_from(logging.verbosity).is_ok(), "logging.verbosity", NOT_TOO_VERBOSE);
    problems.check(
        logging.vmodule.is_empty() || is_text,
        "logging.vmodule",
        "is only possible with format text",
    );
    for (i, item) in logging.vmodule.iter().enumerate() {
        vmodule(&format!("logging.vmodule[{i}]"), item, problems);
    }
    let gate = file.feature_gates.get("LoggingAlphaOptions").or(file.feature_gates.get("AllAlpha"));
    if gate != Some(&true) {
        alpha_options(&logging.options, problems);
    }
}

fn vmodule(path: &str, item: &VmoduleItem, problems: &mut Problems) {
    let pattern = &item.file_pattern;
    problems.check(!pattern.is_empty(), path, "filePattern must not be empty");
    problems.check(!pattern.contains(['=', ',']), path, "filePattern must not contain = or a comma");
    problems.check(i32::try_from(item.verbosity).is_ok(), path, NOT_TOO_VERBOSE);
}

/// Generated files hold every option with its default, which is always allowed.
fn alpha_options(options: &LoggingOptions, problems: &mut Problems) {
    for (format, options) in [("text", &options.text), ("json", &options.json)] {
        let size = &options.info_buffer_size;
        let buffers = size.as_str().map_or(size.as_f64() != Some(0.0), |size| size != "0");
        for (name, is_set) in [("splitStream", options.split_stream), ("infoBufferSize", buffers)] {
            let path = format!("logging.options.{format}.{name}");
            problems.check(!is_set, &path, "needs the feature gate LoggingAlphaOptions");
        }
    }
}
