//! An engine's answer, of which the filter reads the usage as it goes by: the first byte says where it is cut.

use crate::filter::Proxy;
use foreword_filter::{Exchange, Plugin};
use std::sync::Arc;

pub(crate) fn run(input: &[u8]) {
    let Some((cut, answer)) = input.split_first() else {
        return;
    };
    let size = match cut {
        0..250 => usize::from(*cut) + 1,
        large => usize::from(large - 249) * 1_000,
    };
    let whole = counted(answer, answer.len().max(1));
    assert_eq!(whole, counted(answer, size), "in pieces of {size} bytes");
    if let [Some(prompt), Some(cached)] = whole {
        assert!(prompt.parse::<u64>().is_ok() && cached.parse::<u64>().is_ok());
    }
}

/// Tokens of the prompt and cached ones, as the access log says.
fn counted(answer: &[u8], size: usize) -> [Option<String>; 2] {
    let proxy = Proxy::default();
    let plugin = Arc::new(Plugin::load(&proxy, b"{}").expect("the defaults are valid"));
    let headers = [(":method", "POST"), (":path", "/v1/chat/completions")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.into()));
    proxy.state().request_headers.extend(headers);
    let mut exchange = Exchange::new(plugin);
    exchange.on_request_headers(&proxy, false);
    proxy.state().body = br#"{"messages":[{"role":"user","content":"<doc>a</doc>"}]}"#.to_vec();
    let length = proxy.state().body.len();
    exchange.on_request_body(&proxy, length, true);
    proxy
        .state()
        .response_headers
        .insert(":status".to_owned(), b"200".to_vec());
    exchange.on_response_headers(&proxy);
    for chunk in answer.chunks(size) {
        proxy.state().chunk = chunk.to_vec();
        exchange.on_response_body(&proxy, chunk.len(), false);
    }
    exchange.on_response_trailers(&proxy);
    exchange.on_done(&proxy);
    let state = proxy.state();
    ["prompt_tokens", "cached_tokens"].map(|name| state.log_fields.get(name).cloned())
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let usage = r#""usage":{"prompt_tokens":50,"prompt_tokens_details":{"cached_tokens":16}}"#;
    let word = "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}],\"usage\":null}\n\n";
    let anthropic = r#""usage":{"input_tokens":10,"cache_creation_input_tokens":20,"cache_read_input_tokens":70}"#;
    let responses = r#""usage":{"input_tokens":80,"input_tokens_details":{"cached_tokens":64}}"#;
    let answers = [
        format!("{{\"choices\":[],{usage}}}"),
        format!(
            "{}data: {{\"choices\":[],{usage}}}\n\ndata: [DONE]\n\n",
            word.repeat(9)
        ),
        format!(
            "event: message_start\ndata: {{\"message\":{{{anthropic}}}}}\n\n{}",
            word.repeat(90)
        ),
        format!("{{\"id\":\"resp_1\",\"output\":[],{responses},\"metadata\":{{}}}}"),
        format!(
            "event: response.created\ndata: {{\"response\":{{\"id\":\"resp_1\",\"usage\":null}}}}\n\n{}data: \
             {{\"type\":\"response.completed\",\"response\":{{{responses}}}}}\n\n",
            word.repeat(90)
        ),
        r#"{"candidates":[],"usageMetadata":{"promptTokenCount":80,"cachedContentTokenCount":64},"modelVersion":"m"}"#.to_owned(),
        r#"{"metrics":{},"usage":{"inputTokens":10,"cacheReadInputTokens":70,"cacheWriteInputTokens":20}}"#.to_owned(),
        r#"{"content":"Say \"usage\": {\"prompt_tokens\": 1}"}"#.to_owned(),
    ];
    let cuts = [0, 6, 250];
    let inputs = answers
        .iter()
        .flat_map(|answer| cuts.map(|cut| [&[cut], answer.as_bytes()].concat()));
    inputs.collect()
}
