//! The CEL rules that several fields share, and the bounds that keep their cost within what an API server accepts.
//!
//! A rule that parses a text first asks for its form. So a text of another form gets one message, ours, and not the parser's.

use kube::core::Rule;
use schemars::Schema;
use serde_json::{Value, json};

/// A duration: hours, minutes, seconds and milliseconds, in this order, each of them at most once. Its digits are bounded, so that
/// every text of this form can be parsed.
const DURATION: &str = "^([0-9]{1,5}([.][0-9]{1,3})?h)?([0-9]{1,7}([.][0-9]{1,3})?m)?([0-9]{1,9}([.][0-9]{1,3})?s)?([0-9]{1,12}([.][0-9]{1,3})?ms)?$";
/// The name of a namespace, as Kubernetes has it (RFC 1123).
pub(super) const NAMESPACE: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// The name of a cluster: Services are named by it (RFC 1035).
pub(super) const CLUSTER: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
/// Longest text of a quantity. The cost of a rule counts by it.
const QUANTITY_LENGTH: u32 = 32;
/// Most entries of `limits`, and of `requests`.
const RESOURCE_NAMES: u32 = 8;

/// Whether `text` (an expression) has the form of a duration.
pub(super) fn is_duration(text: &str) -> String {
    format!("{text} != '' && {text}.matches('{DURATION}')")
}

/// A field with a duration of which `bounds` holds; `bounds` is about `duration(self)`.
pub(super) fn duration(bounds: &str, message: &str) -> Rule {
    Rule::new(format!("{} && {bounds}", is_duration("self"))).message(message)
}

/// A rule about the durations in `texts`, which holds as well while one of them is of another form: that is refused by its own rule.
pub(super) fn durations(texts: &[&str], rule: &str) -> Rule {
    let malformed = texts.iter().map(|text| format!("!({})", is_duration(text)));
    Rule::new(malformed.chain([format!("({rule})")]).collect::<Vec<_>>().join(" || "))
}

/// Whether a hundred times the duration `of` is at least the duration `least` (expressions). Without a number as text, whose length
/// the API server could not bound.
pub(super) fn a_hundred_times(of: &str, least: &str) -> String {
    format!("[{of}].all(a, [a + a + a + a + a].all(b, [b + b + b + b + b].all(c, c + c + c + c >= {least})))")
}

/// A field of which the whole text matches `pattern`.
pub(super) fn pattern(pattern: &str, message: &str) -> Rule {
    Rule::new(format!("self.matches('{pattern}')")).message(message)
}

/// Whether `what` holds for each entry `k` of `resources.limits` and `resources.requests`. `amount` in `what` is its quantity, as text.
pub(super) fn each_resource(what: &str, message: &str) -> Rule {
    let of = |field: &str| {
        let what = what.replace("amount", &format!("string(self.{field}[k])"));
        format!("(!has(self.{field}) || self.{field}.all(k, {what}))")
    };
    Rule::new(format!("{} && {}", of("limits"), of("requests"))).message(message)
}

/// Bounds the maps of a `ResourceRequirements`, without which no rule about their entries is cheap enough, and shortens what it says
/// about quantities.
pub(super) fn bound_resources(schema: &mut Schema) {
    for field in ["limits", "requests"] {
        let Some(map) = schema.pointer_mut(&format!("/properties/{field}")) else { continue };
        map["maxProperties"] = json!(RESOURCE_NAMES);
        if let Some(Value::Object(quantity)) = map.get_mut("additionalProperties") {
            quantity.insert("maxLength".to_owned(), json!(QUANTITY_LENGTH));
            quantity.insert("description".to_owned(), json!("A quantity, such as 256Mi or 50m."));
        }
    }
    if let Some(claims) = schema.pointer_mut("/properties/claims") {
        claims["description"] = json!("Not supported.");
    }
}
