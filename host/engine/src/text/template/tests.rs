//! Tests of templates in the style of the model families, and of the files that contain them.

use super::*;
use serde_json::json;
use std::time::{Duration, UNIX_EPOCH};

/// In the style of Llama 3.1's, shortened: date, tools in the first user message, tool calls.
const LLAMA: &str = r#"{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools is not none %}
    {%- set first_user_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;

/// In the style of Qwen 2.5's.
const QWEN: &str = r#"{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\n{\"name\": <function-name>, \"arguments\": <args-json-object>}<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"#;

/// In the style of Mistral 7B Instruct v0.3's: roles must alternate, and the system text is in the last user message.
const MISTRAL: &str = r#"{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"#;

fn template(source: &str) -> ChatTemplate {
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "unk_token": null});
    ChatTemplate::new(vec![(DEFAULT, source.to_owned())], &config).unwrap()
}

fn render(template: &ChatTemplate, messages: Json) -> Result<String, String> {
    template
        .render(&messages, None, None, None, Ending::Answer)
        .map_err(|error| error.to_string())
}

fn conversation() -> Json {
    json!([
        {"role": "system", "content": " Be <brief>. "},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "It's 5 < 6 & \"so\"?"},
    ])
}

fn weather() -> Json {
    json!([{"type": "function", "function": {"name": "weather", "parameters": {"place": "<é>", "days": 2.0}}}])
}

#[test]
fn llama_style() {
    let mut template = template(LLAMA);
    let clock = || UNIX_EPOCH + Duration::from_secs(1_722_384_000);
    set_clock(&mut template.environment, clock);
    assert_eq!(
        render(&template, conversation()).unwrap(),
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 31 Jul 2024\n\nBe <brief>.<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nIt's 5 < 6 & \"so\"?<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n"
    );
    let call = json!({"function": {"name": "weather", "arguments": {"place": "here"}}});
    let messages = json!([
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "no"},
    ]);
    assert_eq!(
        template
            .render(&messages, Some(&weather()), None, None, Ending::Answer)
            .unwrap(),
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 31 Jul 2024\n\n<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\n{\n    \"type\": \"function\",\n    \"function\": {\n        \
         \"name\": \"weather\",\n        \"parameters\": {\n            \"place\": \"<é>\",\n            \
         \"days\": 2.0\n        }\n    }\n}\n\nRain?<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"weather\", \"parameters\": {\"place\": \
         \"here\"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n\"no\"<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n"
    );
    let twice = json!([{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call, call]}]);
    let error = render(&template, twice).unwrap_err();
    assert_eq!(
        error,
        "chat template: This model only supports single tool-calls at once!"
    );
}

#[test]
fn qwen_style() {
    let template = template(QWEN);
    assert_eq!(
        render(&template, conversation()).unwrap(),
        "<|im_start|>system\n Be <brief>. <|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello\
         <|im_end|>\n<|im_start|>user\nIt's 5 < 6 & \"so\"?<|im_end|>\n<|im_start|>assistant\n"
    );
    let call = |place| json!({"type": "function", "function": {"name": "weather", "arguments": {"place": place}}});
    let messages = json!([
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "content": "no"},
        {"role": "tool", "content": "yes"},
    ]);
    assert_eq!(
        template
            .render(&messages, Some(&weather()), None, None, Ending::Answer)
            .unwrap(),
        "<|im_start|>system\nYou are a helpful assistant.\n\n# Tools\n\n<tools>\n{\"type\": \"function\", \
         \"function\": {\"name\": \"weather\", \"parameters\": {\"place\": \"<é>\", \"days\": 2.0}}}\n</tools>\n\n\
         {\"name\": <function-name>, \"arguments\": <args-json-object>}<|im_end|>\n<|im_start|>user\nRain?<|im_end|>\n\
         <|im_start|>assistant\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"a\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"b\"}}\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\nno\n</tool_response>\n<tool_response>\nyes\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n"
    );
}

#[test]
fn mistral_style() {
    let template = template(MISTRAL);
    let prompt = render(&template, conversation()).unwrap();
    assert_eq!(
        prompt,
        "<s>[INST] Hi[/INST] Hello</s>[INST]  Be <brief>. \n\nIt's 5 < 6 & \"so\"?[/INST]"
    );
    let error = render(
        &template,
        json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]),
    );
    assert!(
        error
            .unwrap_err()
            .contains("conversation roles must alternate")
    );
}

#[test]
fn what_templates_of_other_models_use_works() {
    // As in the templates of Qwen 3, SmolLM 3, DeepSeek and Command R.
    for (source, expected) in [
        (
            "{%- for m in messages[::-1] %}{{ m.content }};{% endfor %}",
            "a</t>b;q;",
        ),
        (
            "{{ messages[-1].content.split('</t>')[-1].lstrip('\\n') }}",
            "b",
        ),
        (
            "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
            "user",
        ),
        (
            "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
            "assistant",
        ),
        (
            "a\n  {% generation %}\nb\n  {%- endgeneration -%}\n c",
            "a\nbc",
        ),
        (
            "{% macro q(x, y='!') %}{{ x ~ y }}{% endmacro %}{{ q('a') }}{{ q('b', y='?') }}",
            "a!b?",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        (
            "{% for k, v in messages[0].items() %}{{ k }}={{ v }},{% endfor %}",
            "role=user,content=q,",
        ),
        (
            "{{ messages[0].get('x', 'none') }}{{ messages[0]['x'] is defined }}",
            "noneFalse",
        ),
        (
            "{{ messages | map(attribute='role') | join('/') }}{{ 'us' in messages[0].role }}",
            "user/assistantTrue",
        ),
        (
            "{{ messages[0].content is string and messages[0] is mapping and messages is sequence }}",
            "True",
        ),
        (
            "{{ '%s-%d' | format('a', 3) }}{{ 'X'.lower().strip().startswith('x') }}",
            "a-3True",
        ),
        (
            "{{ unk_token is defined }}{{ tools is none }}{{ documents }}",
            "FalseTrueNone",
        ),
        (
            "{% if messages[0].content %}\nline\n{% endif %}\n{# gone #}\nend\n",
            "line\nend",
        ),
    ] {
        let messages =
            json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a</t>b"}]);
        assert_eq!(
            render(&template(source), messages).as_deref(),
            Ok(expected),
            "{source}"
        );
    }
}

#[test]
fn documents_reach_the_template_in_order() {
    let template = template("{% for d in documents %}{{ d.id }}:{{ d.text }};{% endfor %}");
    let documents = json!([{"id": "b", "text": "<B>"}, {"id": "a", "text": "A"}]);
    assert_eq!(
        template
            .render(&json!([]), None, Some(&documents), None, Ending::Answer)
            .unwrap(),
        "b:<B>;a:A;"
    );
}

#[test]
fn text_parts_are_joined_only_where_a_string_is_expected() {
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    let expects_string =
        template("{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}");
    assert_eq!(render(&expects_string, parts.clone()).unwrap(), "user:a\nb");
    let prints = template("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert_eq!(render(&prints, parts.clone()).unwrap(), "a\nb");
    let reads_parts = template(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
         [{{ p.text }}]{% endfor %}{% endif %}{% endfor %}",
    );
    assert_eq!(render(&reads_parts, parts).unwrap(), "[a][b]");
    let image =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let error = render(&reads_parts, image).unwrap_err();
    assert_eq!(
        error,
        "chat template: messages[0].content[0] is of type \"image_url\", not a \"text\""
    );
}

#[test]
fn messages_that_are_none_are_named() {
    let template = template(QWEN);
    for (messages, word) in [
        (json!("hi"), "messages is not an array"),
        (json!([{"content": "hi"}]), "messages[0] has no role"),
        (
            json!([{"role": "user", "content": "a"}, 3]),
            "messages[1] has no role",
        ),
        (json!([{"role": "user"}]), "default:"),
    ] {
        let error = render(&template, messages).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_runaway_template_ends() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let error = render(&template(endless), json!([])).unwrap_err();
    assert!(error.contains("fuel"), "{error}");
    let huge = "{% set a = 'x' * 99999 %}{% for i in range(9999) %}{{ a }}{% endfor %}";
    let error = render(&template(huge), json!([])).unwrap_err();
    assert!(
        error.contains("67108864 bytes") || error.contains("write"),
        "{error}"
    );
    let recursive = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    assert!(render(&template(recursive), json!([])).is_err());
}

#[test]
fn a_prompt_ends_within_its_last_message() {
    let within = |source: &str, text: &str| {
        let messages =
            json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]);
        template(source)
            .render(&messages, None, None, None, Ending::FinalMessage)
            .map_err(|error| error.to_string())
    };
    let chatml =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    let stripped = chatml.replace("m.content", "m.content | trim");
    // The first six also occur in the template's own markers.
    for text in ["end", "im", "<", "|", "_", "e", "I ", " so:\n"] {
        let head = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(within(chatml, text).unwrap(), format!("{head}{text}"));
        let trimmed = text.trim();
        assert_eq!(within(&stripped, text).unwrap(), format!("{head}{trimmed}"));
    }
    let error = within(chatml, " ").unwrap_err();
    assert!(error.contains("no text that could be continued"), "{error}");
    let error = within("{{ messages[0].content }}", "end").unwrap_err();
    assert!(
        error.contains("does not show the last message's text"),
        "{error}"
    );
}

#[test]
fn files_are_found_where_checkpoints_have_them() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let load = || ChatTemplate::load(folder.path(), None);
    let hello = |template: &ChatTemplate, tools: Option<&Json>| {
        template
            .render(&json!([]), tools, None, None, Ending::Answer)
            .unwrap()
    };

    assert!(load().unwrap().is_none(), "no files");
    write("tokenizer_config.json", r#"{"bos_token": "<s>"}"#);
    assert!(load().unwrap().is_none(), "no template");
    write(
        "tokenizer_config.json",
        r#"{"bos_token": "<s>", "chat_template": "{{ bos_token }}config"}"#,
    );
    assert_eq!(hello(&load().unwrap().unwrap(), None), "<s>config");
    write("chat_template.jinja", "{{ bos_token }}file");
    assert_eq!(
        hello(&load().unwrap().unwrap(), None),
        "<s>file",
        "the file comes first"
    );
    write("own.jinja", "{{ bos_token }}own");
    let own = |name: &str| ChatTemplate::load(folder.path(), Some(&folder.path().join(name)));
    assert_eq!(hello(&own("own.jinja").unwrap().unwrap(), None), "<s>own");
    let missing = own("none.jinja").map(drop).unwrap_err().to_string();
    assert!(
        missing.contains("none.jinja: there is no such file"),
        "{missing}"
    );

    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    let named = |name: &str| json!({"name": name, "template": name});
    let list = json!({"chat_template": [named("rag"), named("tool_use"), named("default")]});
    write("tokenizer_config.json", &list.to_string());
    let template = load().unwrap().unwrap();
    assert_eq!(
        (hello(&template, None), hello(&template, Some(&json!([])))),
        ("default".into(), "tool_use".into())
    );

    for (config, word) in [
        ("{", "EOF"),
        (r#"{"chat_template": 3}"#, "chat_template is a number"),
        (
            r#"{"chat_template": [{"name": "default"}]}"#,
            "without a name or a template",
        ),
        (r#"{"chat_template": "{% if %}"}"#, "syntax error"),
    ] {
        write("tokenizer_config.json", config);
        let error = load().err().unwrap().to_string();
        assert!(
            error.contains(word) && error.contains("tokenizer_config.json: "),
            "{error}"
        );
    }
}

/// Renders a template that nests a value `levels` deep and then contains `then`.
fn nested(levels: usize, then: &str) -> Result<String, TextError> {
    let source = format!(
        "{{% set ns = namespace(x=1, y=1) %}}{{% for i in range({levels}) %}}{{% set ns.x = [ns.x] %}}\
         {{% set ns.y = {{'a': ns.y}} %}}{{% endfor %}}{then}"
    );
    let made = on_a_deep_stack(|| ChatTemplate::new(vec![(DEFAULT, source)], &Json::Null));
    let messages = json!([{"role": "user", "content": "x"}]);
    made.unwrap()
        .unwrap()
        .render(&messages, None, None, None, Ending::Answer)
}

#[test]
fn a_template_that_nests_ten_thousand_deep_gets_an_error_where_it_prints() {
    for print in [
        "{{ ns.x }}",
        "{{ ns.y }}",
        "{{ ns.x|tojson }}",
        "{{ ns.y|tojson }}",
    ] {
        let error = nested(10_000, print).unwrap_err().to_string();
        assert!(error.contains("deeper than 512 levels"), "{print}: {error}");
    }
    assert_eq!(nested(500, "{{ ns.x }}").unwrap().len(), 1001);
    assert!(nested(500, "{{ ns.y|tojson }}").is_ok());
}

/// Values as deep as the steps allow, in every operation that recurses through a value.
#[test]
fn a_template_ends_nobody_but_itself() {
    for then in [
        "",
        "{{ ns.x == ns.y }}",
        "{{ (ns.x|string)|length }}",
        "{{ [ns.x, [ns.x]]|sort|length }}",
        "{{ [ns.x, ns.y]|unique|list|length }}",
        "{{ {ns.x: 1}|length }}",
        "{{ ns.x|pprint }}",
    ] {
        // Success or error: only the return matters.
        let _ = nested(9_999, then);
    }
    let deepest = format!(
        "{{% for i in range(9000) %}}{{% set ns.x = {}ns.x{} %}}{{% endfor %}}{{{{ (ns.x|string)|length }}}}",
        "[".repeat(40),
        "]".repeat(40)
    );
    assert!(nested(1, &deepest).is_ok());
    let error = nested(1, &deepest.replace("9000", "90000")).unwrap_err();
    assert!(matches!(error, TextError::Template(_)), "{error}");
}

#[test]
fn deep_syntax_is_compiled_or_refused() {
    for (repeated, ok) in [
        ("+1".repeat(100_000), true),
        ("+1".repeat(200_000), false),
        ("|string".repeat(30_000), true),
    ] {
        let source = format!("{{{{ 1{repeated} }}}}");
        let made =
            on_a_deep_stack(|| ChatTemplate::new(vec![(DEFAULT, source)], &Json::Null).map(|_| ()))
                .unwrap();
        assert_eq!(made.is_ok(), ok, "{made:?}");
    }
}
