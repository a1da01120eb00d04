//! The endpoints that the gateway allows for a request, and the endpoint that served it, in dynamic metadata under the
//! endpoint picker protocol's names.
//!
//! ```text
//!   request    envoy.lb.subset_hint   x-gateway-destination-endpoint-subset   ["10.0.0.1:8000", …]
//!   response   envoy.lb               x-gateway-destination-endpoint-served   "10.0.0.1:8000"
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};

/// The endpoints that may be chosen for a request, even if none of them is in the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Subset {
    addresses: Vec<SocketAddr>,
    /// Hosts of entries without a port; all their ports are allowed.
    hosts: Vec<IpAddr>,
}

impl Subset {
    /// Parses a request's metadata; `None` if it has no subset, so that every endpoint is allowed. The value is a list
    /// of strings, or a string with commas. Entries that are not addresses are ignored.
    pub(crate) fn of(metadata: &BTreeMap<String, Struct>) -> Option<Self> {
        let value = metadata.get(SUBSET_NAMESPACE)?.fields.get(SUBSET_KEY)?;
        let mut subset = Self::default();
        subset.take(value);
        Some(subset)
    }

    fn take(&mut self, value: &Value) {
        match &value.kind {
            Some(Kind::StringValue(text)) => {
                for entry in text.split(',').map(str::trim) {
                    if let Ok(address) = entry.parse() {
                        self.addresses.push(address);
                    } else if let Ok(host) = entry.parse() {
                        self.hosts.push(host);
                    }
                }
            }
            Some(Kind::ListValue(list)) => {
                let texts = list.values.iter();
                let is_text = |value: &&Value| matches!(value.kind, Some(Kind::StringValue(_)));
                texts.filter(is_text).for_each(|text| self.take(text));
            }
            _ => {}
        }
    }

    pub(crate) fn holds(&self, address: SocketAddr) -> bool {
        self.addresses.contains(&address) || self.hosts.contains(&address.ip())
    }
}

/// Returns the address of the endpoint that served the request, as the gateway reports it; `None` if it does not.
pub(crate) fn served(metadata: &BTreeMap<String, Struct>) -> Option<&str> {
    let value = (metadata.get(DESTINATION_NAMESPACE)?.fields).get(SERVED_KEY)?;
    match &value.kind {
        Some(Kind::StringValue(address)) => Some(address),
        _ => None,
    }
}

/// The metadata namespace of chosen and serving endpoints.
pub(crate) const DESTINATION_NAMESPACE: &str = "envoy.lb";
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET_KEY: &str = "x-gateway-destination-endpoint-subset";
const SERVED_KEY: &str = "x-gateway-destination-endpoint-served";

#[cfg(test)]
mod tests {
    use super::*;
    use envoy_types::pb::google::protobuf::ListValue;

    fn text(text: &str) -> Value {
        Value {
            kind: Some(Kind::StringValue(text.to_owned())),
        }
    }

    fn list(values: Vec<Value>) -> Value {
        Value {
            kind: Some(Kind::ListValue(ListValue { values })),
        }
    }

    fn metadata(namespace: &str, key: &str, value: Value) -> BTreeMap<String, Struct> {
        let fields = [(key.to_owned(), value)].into_iter().collect();
        BTreeMap::from([(namespace.to_owned(), Struct { fields })])
    }

    /// The endpoints, of three, that a hint allows; `None` if it is no hint.
    fn left(hint: Value) -> Option<Vec<usize>> {
        let subset = Subset::of(&metadata(SUBSET_NAMESPACE, SUBSET_KEY, hint))?;
        let holds = |last: &usize| subset.holds(format!("10.0.0.{last}:8080").parse().unwrap());
        Some((1..=3).filter(holds).collect())
    }

    // The cases of the inference extension's light picker, `pkg/lwepp/handlers/request_test.go`.
    #[test]
    fn a_subset_is_read_in_all_its_spellings_and_an_empty_one_holds_nothing() {
        for (hint, expected) in [
            (list(vec![text("10.0.0.3:8080")]), &[3][..]),
            (text("10.0.0.2:8080,10.0.0.3:8080"), &[2, 3]),
            (text("  10.0.0.2:8080 ,  ,  10.0.0.3:8080  "), &[2, 3]),
            (list(vec![text("10.0.0.2:8080, 10.0.0.3:8080")]), &[2, 3]),
            (list(vec![text("10.0.0.2")]), &[2]),
            (list(vec![]), &[]),
            (text(""), &[]),
            (text("192.168.1.1:8080"), &[]),
            // Another port is another endpoint.
            (text("10.0.0.1:9090"), &[]),
            (list(vec![list(vec![text("10.0.0.1:8080")])]), &[]),
            (Value { kind: None }, &[]),
            (
                Value {
                    kind: Some(Kind::NumberValue(1.0)),
                },
                &[],
            ),
        ] {
            assert_eq!(left(hint.clone()).as_deref(), Some(expected), "{hint:?}");
        }
        let other = metadata(SUBSET_NAMESPACE, "another-key", text("10.0.0.1:8080"));
        assert_eq!(Subset::of(&other), None);
        assert_eq!(Subset::of(&BTreeMap::new()), None);
    }

    #[test]
    fn the_endpoint_that_answered_is_a_text_of_its_own_namespace() {
        let told = metadata("envoy.lb", SERVED_KEY, text("10.0.0.1:8080"));
        assert_eq!(served(&told), Some("10.0.0.1:8080"));
        assert_eq!(
            served(&metadata("envoy.lb", SERVED_KEY, list(vec![]))),
            None
        );
        assert_eq!(served(&metadata("other", SERVED_KEY, text("a"))), None);
    }
}
