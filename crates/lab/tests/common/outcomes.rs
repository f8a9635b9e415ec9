//! The JSON form in which `braid-lab run --json` reports outcomes.

use serde_json::Value;

/// Asserts that `json` is an array of one object for each of `ids`, run with `seed`, and with a verdict
/// for each claim.
pub fn assert_outcomes(json: &[u8], ids: &[&str], seed: u64) {
    let outcomes: Value = serde_json::from_slice(json).expect("JSON");
    let outcomes = outcomes.as_array().expect("an array");
    let named: Vec<&Value> = outcomes.iter().map(|outcome| &outcome["id"]).collect();
    assert_eq!(named, ids);
    for (outcome, id) in outcomes.iter().zip(ids) {
        let fields = outcome.as_object().expect("an object").keys();
        let expected = ["holds", "id", "measured", "parameters", "reported", "seeds"];
        assert_eq!(fields.collect::<Vec<_>>(), expected);
        assert_eq!(outcome["seeds"], serde_json::json!([seed]), "{id}");
        let parameters = &outcome["parameters"];
        let cc = parameters["congestion control"]
            .as_str()
            .unwrap_or_default();
        assert!(cc.starts_with("cubic"), "{id}: {cc}");
        let measured = outcome["measured"].as_object().expect("by claim");
        let holds = measured.values().map(|claim| claim["holds"].as_bool());
        let holds: Option<Vec<bool>> = holds.collect();
        let all = holds.expect("each claim is judged").into_iter().all(|h| h);
        assert_eq!(outcome["holds"], all, "{id}");
        for claim in outcome["reported"].as_object().expect("by claim").keys() {
            let values = measured[claim]["values"].as_object().expect("by label");
            assert!(values.values().all(Value::is_number), "{id}: {claim}");
        }
    }
}
