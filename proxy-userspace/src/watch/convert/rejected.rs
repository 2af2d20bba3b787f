//! Why an object is refused.

use thiserror::Error;

/// What is wrong with an object. `field` is the path in the manifest.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Rejected {
    /// A field has another type than the API's.
    #[error("{field}: {reason}")]
    Malformed {
        /// Path of the field.
        field: String,
        /// What was found and what was expected.
        reason: String,
    },
    /// `metadata.name` is absent.
    #[error("metadata.name is missing")]
    NoName,
    /// A pod that opts out of socket LB is recognised by its cgroup, and that by the UID.
    #[error("metadata.uid is missing, without which the pod cannot opt out of socket LB")]
    NoUid,
    /// Neither `enabled` nor `disabled`.
    #[error("{field}: {value:?} is neither \"enabled\" nor \"disabled\"")]
    NotASwitch {
        /// Path of the field.
        field: String,
        /// What it says.
        value: String,
    },
    /// There is no `spec`.
    #[error("spec is missing")]
    NoSpec,
    /// A service that has addresses and no ports.
    #[error("spec.ports is empty")]
    NoPorts,
    /// A slice without the label of its service.
    #[error("the label kubernetes.io/service-name is missing, so it belongs to no service")]
    NoServiceLabel,
    /// An endpoint without addresses.
    #[error("{field} is empty")]
    NoAddress {
        /// Path of the field.
        field: String,
    },
    /// Text that is no IP address.
    #[error("{field}: {value:?} is not an IP address")]
    NotAnAddress {
        /// Path of the field.
        field: String,
        /// What it says.
        value: String,
    },
    /// An address no packet can be sent to from another host.
    #[error("{field}: {value} is unspecified, loopback, link-local or multicast")]
    SpecialAddress {
        /// Path of the field.
        field: String,
        /// The address.
        value: std::net::IpAddr,
    },
    /// An address of another family than the slice says.
    #[error("{field}: {value} is not an address of family {family}")]
    WrongFamily {
        /// Path of the field.
        field: String,
        /// The address.
        value: std::net::IpAddr,
        /// What `addressType` says.
        family: crate::model::Family,
    },
    /// Text that is no prefix.
    #[error("{field}: {value:?} is not a CIDR")]
    NotACidr {
        /// Path of the field.
        field: String,
        /// What it says.
        value: String,
    },
    /// A port number below 1 or above 65535.
    #[error("{field}: {value} is not a port number")]
    NotAPort {
        /// Path of the field.
        field: String,
        /// The number.
        value: i32,
    },
    /// A number outside of its range.
    #[error("{field}: {value} is not in {min}..={max}")]
    OutOfRange {
        /// Path of the field.
        field: String,
        /// The number.
        value: i32,
        /// The least allowed.
        min: i32,
        /// The most allowed.
        max: i32,
    },
    /// A word that the API does not know.
    #[error("{field}: {value:?} is none of {known}")]
    UnknownValue {
        /// Path of the field.
        field: String,
        /// What it says.
        value: String,
        /// What it may say.
        known: &'static str,
    },
    /// An entry of a list of weights that is none.
    #[error(
        "{field}: {entry:?} is not KEY=WEIGHT, with an address, pod:NAME, node:NAME or zone:NAME, and a weight of 0 to 1000"
    )]
    NotAWeight {
        /// Path of the field.
        field: String,
        /// What it says.
        entry: String,
    },
    /// Two ports that cannot be told apart.
    #[error("{field}: {value} is used twice")]
    Duplicate {
        /// Path of the second one.
        field: String,
        /// What both have.
        value: String,
    },
}
