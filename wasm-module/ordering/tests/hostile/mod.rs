//! Bodies that are made to cost their reader: one fragment of a syntax over and over, nested or never closed. Used by the
//! core's tests, by the fuzz targets as seeds, and by the measurement of hostile bodies.
#![allow(dead_code, unreachable_pub, reason = "not everybody takes all of it")]

/// Fragments of text, as between the quotes of a JSON string: what comes first, what is repeated, what comes last.
pub(crate) const TEXTS: &[(&str, [&str; 3])] = &[
    ("tag in a quoted value", ["<doc ", "a='<doc ' ", ""]),
    (
        "tag in a quoted value, closed",
        ["<doc ", "a='<doc ' ", "></doc>"],
    ),
    (
        "tag in a quoted value, lines",
        ["<doc ", r"a='\n<doc ' ", "></doc>"],
    ),
    ("tag in a value", ["<doc ", "a=<doc ", ">x</doc>"]),
    (
        "tags by turns",
        ["<doc ", "a='<source ' b='<file ' ", "></doc>"],
    ),
    (
        "quotes by turns",
        ["<doc ", r#"a='<doc \"' b=\"<doc '\" "#, "></doc>"],
    ),
    ("unclosed quotes", ["", "<doc a='", ""]),
    ("unclosed opening tags", ["", "<doc ", ""]),
    ("unclosed documents", ["", "<doc id=a>", ""]),
    (
        "unclosed documents of every name",
        [
            "",
            "<doc><document><passage><source><context><reference><file>",
            "",
        ],
    ),
    (
        "unclosed documents, one closed",
        ["", r"\n<doc id=a>", "</doc>"],
    ),
    (
        "lines of tags that fail",
        ["<doc>", r"\n<doc a='", "</doc>"],
    ),
    ("labels", ["", "a <b <doc></doc>", ""]),
    ("a label of tags", ["<doc></doc>", "<a", "<doc></doc>"]),
    ("closing tags", ["<doc>", "</", ""]),
    ("closing tags of a document", ["<doc>", "</doc>", ""]),
    ("closing tags that do not end", ["<doc>", "</doc ", ""]),
    (
        "names and spaces",
        ["<doc>", "</doc                                ", ""],
    ),
    ("wrappers", ["", "<documents>", ""]),
    (
        "wrappers around a document",
        ["", "<documents>", "<doc>a</doc></documents>"],
    ),
    (
        "a wrapper that does not end",
        ["<doc>a</doc></", "docs", ""],
    ),
    ("angle brackets", ["", "<", ""]),
    ("long names", ["", "<documentdocumentdocument", ""]),
    ("attributes", ["<doc", " a", ">b</doc>"]),
    ("loose tags", ["", "<context ", ""]),
    (
        "one loose tag each",
        ["<context>a</context><file>b</file>", "<reference>", ""],
    ),
    ("escaped brackets", ["", r"\u003c", ""]),
    ("escaped tags", [r"\u003cdoc ", r"a='\u003cdoc ' ", ""]),
    ("escapes", ["", r"\u003", ""]),
    ("escapes of nothing", ["<", r"\ud800", ""]),
    ("line ends", ["<", r"\n", ""]),
    ("numbered items", ["", r"[1] [2] a\n", ""]),
    (
        "numbered items with blank lines",
        ["", r"[7] a\n\n", "[8] b"],
    ),
    ("open brackets", ["", "[", ""]),
    ("digits in a bracket", ["[", "0", "1] a"]),
    ("rules", ["", r"---\n", ""]),
    ("dashes", ["", "-", ""]),
    ("dashes and spaces", ["", r" ---   \n", ""]),
    ("headings", ["", r"# \n# a\n", ""]),
    ("hashes", ["", "#", ""]),
    ("fences", ["", r"```\n[1] a\n", ""]),
    ("JSON of brackets", ["", "[[[[", ""]),
    ("JSON of names", ["", r#"{\"{\"{\""#, ""]),
    (
        "results",
        [
            r#"{\"results\":["#,
            r#"{\"url\":\"a\"},"#,
            r#"{\"url\":\"b\"}]}"#,
        ],
    ),
    (
        "results of tags",
        [
            r#"{\"results\":[{\"url\":\""#,
            "<doc a='<doc ' ",
            r#"\"}]}"#,
        ],
    ),
    (
        "results without an end",
        [r#"{\"results\":["#, r#"{\"url\":\"a\"},"#, ""],
    ),
    ("results in results", ["", r#"{\"results\":["#, ""]),
    ("white space", ["<doc>a</doc>", r" \t\u00a0", "?"]),
];

/// Whole bodies: what comes first, what is repeated, what comes last.
pub(crate) const BODIES: &[(&str, [&str; 3])] = &[
    ("messages", [r#"{"messages":["#, "{},", "{}]}"]),
    (
        "parts",
        [
            r#"{"messages":[{"role":"user","content":["#,
            "{},",
            "{}]}]}",
        ],
    ),
    (
        "numbers",
        [r#"{"messages":[{"role":"user","content":["#, "1,", "1]}]}"],
    ),
    (
        "text parts",
        [
            r#"{"messages":[{"role":"user","content":["#,
            r#"{"text":""},"#,
            "1]}]}",
        ],
    ),
    (
        "documents in text parts",
        [
            r#"{"messages":[{"role":"user","content":["#,
            r#"{"text":"<doc>a</doc>"},"#,
            "1]}]}",
        ],
    ),
    (
        "blocks",
        [
            r#"{"messages":[{"role":"user","content":["#,
            r#"{"type":"document"},"#,
            "1]}]}",
        ],
    ),
    (
        "results of tools",
        [
            r#"{"messages":[{"role":"user","content":["#,
            r#"{"type":"tool_result","content":[{"text":"<doc "}]},"#,
            "1]}]}",
        ],
    ),
    (
        "a result of a tool",
        [
            r#"{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"<doc "#,
            "a='<doc ' ",
            r#""}]}]}]}"#,
        ],
    ),
    (
        "results in results of tools",
        [
            r#"{"messages":[{"role":"user","content":"#,
            r#"[{"type":"tool_result","content":"#,
            "1",
        ],
    ),
    (
        "documents",
        [
            r#"{"documents":["#,
            r#""","#,
            r#"""],"messages":[{"role":"user","content":"a"}]}"#,
        ],
    ),
    (
        "a document",
        [
            r#"{"documents":[{"data":{"text":""#,
            r"</document \n<",
            r#""}}],"messages":[{"role":"user","content":"a"}]}"#,
        ],
    ),
    (
        "a document's id",
        [
            r#"{"documents":[{"id":""#,
            r#"<\u003e\""#,
            r#"","text":"a"},"b"],"messages":[{"role":"user","content":"a"}]}"#,
        ],
    ),
    (
        "chat history",
        [
            r#"{"message":"a","chat_history":["#,
            r#"{"role":"USER","message":"<doc "},"#,
            "{}]}",
        ],
    ),
    ("items", [r#"{"input":["#, "{},", "{}]}"]),
    (
        "items that are left alone",
        [r#"{"input":["#, r#"{"type":"later"},"#, "1]}"],
    ),
    (
        "parts of items",
        [
            r#"{"input":[{"role":"user","content":["#,
            r#"{"type":"input_text","text":"<doc "},"#,
            "1]}]}",
        ],
    ),
    (
        "outputs of functions",
        [
            r#"{"input":["#,
            r#"{"type":"function_call_output","output":[{"text":"<doc "}]},"#,
            "1]}",
        ],
    ),
    (
        "passages",
        [
            r#"{"input":[{"type":"file_search_call","results":["#,
            r#"{"text":"","filename":""},"#,
            "1]}]}",
        ],
    ),
    ("an input", [r#"{"input":""#, "a='<doc ' ", r#""}"#]),
    (
        "contents",
        [
            r#"{"contents":["#,
            r#"{"parts":[{"text":"<doc "}]},"#,
            "{}]}",
        ],
    ),
    (
        "responses of functions",
        [
            r#"{"contents":[{"parts":["#,
            r#"{"functionResponse":{"response":{"result":"<doc ","results":[{"url":"a"}]}}},"#,
            "1]}]}",
        ],
    ),
    (
        "a response of a function",
        [
            r#"{"contents":[{"parts":[{"functionResponse":{"response":{"results":["#,
            r#"{"url":"a"},"#,
            r#"{"url":"b"}]}}}]}]}"#,
        ],
    ),
    (
        "functions",
        [
            r#"{"contents":[{}],"tools":[{"functionDeclarations":["#,
            r#"{"name":"f"},"#,
            "{}]}]}",
        ],
    ),
    (
        "documents of Converse",
        [
            r#"{"messages":[{"role":"user","content":["#,
            r#"{"document":{"name":"a","source":{}}},"#,
            "1]}]}",
        ],
    ),
    (
        "tool results of Converse",
        [
            r#"{"messages":[{"role":"user","content":["#,
            r#"{"toolResult":{"content":[{"json":{"results":[{"url":"a"}]}}]}},"#,
            "1]}]}",
        ],
    ),
    (
        "results in results of Converse",
        [
            r#"{"messages":[{"role":"user","content":"#,
            r#"[{"toolResult":{"content":"#,
            "1",
        ],
    ),
    (
        "tools of Converse",
        [
            r#"{"messages":[{}],"toolConfig":{"tools":["#,
            r#"{"toolSpec":{"name":"f"}},"#,
            "{}]}}",
        ],
    ),
    (
        "names",
        [r#"{"messages":[],"#, r#""\u0061b":1,"#, r#""z":1}"#],
    ),
    ("depth", [r#"{"a":"#, "[", ""]),
    ("spaces", [r#"{"a":1"#, " \n", "}"]),
    ("strings", [r#"{"a":["#, r#""","#, r#"""]}"#]),
    (
        "a retrieval field in spaces",
        [r#"{"retrieval""#, " ", r#":{}}"#],
    ),
];

/// A body of about so many bytes.
pub(crate) fn body([before, repeated, after]: [&str; 3], bytes: usize) -> String {
    let left = bytes.saturating_sub(before.len() + after.len());
    [before, &repeated.repeat(left / repeated.len()), after].concat()
}

/// A chat with one message of that role and such a text.
pub(crate) fn chat(role: &str, text: [&str; 3], bytes: usize) -> String {
    format!(
        r#"{{"messages":[{{"role":"{role}","content":"{}"}}]}}"#,
        self::body(text, bytes)
    )
}

/// Every body, by what it is made of.
pub(crate) fn bodies(bytes: usize) -> Vec<(String, String)> {
    let texts = TEXTS.iter().flat_map(|(name, text)| {
        ["user", "tool"].map(|role| (format!("{name}, of a {role}"), chat(role, *text, bytes)))
    });
    let bodies = BODIES
        .iter()
        .map(|(name, parts)| ((*name).to_owned(), body(*parts, bytes)));
    texts.chain(bodies).collect()
}

/// Bodies that are made to cost the decision: many units, texts, parts, markers, tools, messages and documents. `%n` stands
/// for a number of its own in each repetition.
pub(crate) const DECISIONS: &[(&str, [&str; 3])] = &[
    (
        "marked parts of a system message",
        [
            r#"{"messages":[{"role":"system","content":["#,
            r#"{"text":"a","cache_control":1},"#,
            r#"{"text":"b"}]},{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "marked parts of a system text",
        [
            r#"{"system":["#,
            r#"{"type":"text","text":"a%n","cache_control":{"type":"ephemeral"}},"#,
            r#"{"type":"text","text":"b"}],"messages":[{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "parts of a system message",
        [
            r#"{"messages":[{"role":"system","content":["#,
            r#"{"type":"text","text":"a%n"},"#,
            r#"{"text":"b"}]},{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "parts of lines",
        [
            r#"{"messages":[{"role":"system","content":["#,
            r#"{"text":"a\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na"},"#,
            r#"{"text":"b"}]},{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "parts of lines with dates",
        [
            r#"{"messages":[{"role":"system","content":["#,
            r#"{"text":"Current time: %n\nCurrent time: %n\nCurrent time: %n\nCurrent time: %n\nCurrent time: %n\nCurrent time: %n"},"#,
            r#"{"text":"b"}]},{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    ("lines", system(r"a\n")),
    ("numbered lines", system(r"%n\n")),
    ("dates", system(r"Current time: 12:03:%n\n")),
    (
        "dates that end late",
        system(r"Current time is Tuesday, and the sun is at %n\n"),
    ),
    ("the same date", system(r"Current time: 12:03\n")),
    ("sentences", system("Ann %n is. ")),
    (
        "sentences of one line with dates",
        system("The current time is 12:0%n. "),
    ),
    (
        "words before a stop",
        system("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa."),
    ),
    ("ids", system("req-a%n1b2c ")),
    ("lines of ids", system(r"req-a%n1b2c\n")),
    ("lines with an id each", system(r"Session ID: %n\n")),
    (
        "lines that look like ids",
        system(r"run-run-run_run-run-run_job-conv-%n\n"),
    ),
    (
        "long lines that look like ids",
        system("id run- run_ job- ID Id job_ urrent ser "),
    ),
    (
        "dates that stay",
        system(r"Conversation started: Friday, August 21, %n\n"),
    ),
    (
        "dates in tags",
        system("<current_date>2026-11-22</current_date>"),
    ),
    (
        "lines of dates in tags",
        system(r"<current_date>2026-11-22</current_date>%n\n"),
    ),
    (
        "wrappers with an id",
        system(r#"<<<EXTERNAL_UNTRUSTED_CONTENT id=\"ab%n\">>>\n"#),
    ),
    (
        "wrappers in one line",
        system(r#"<<<EXTERNAL_UNTRUSTED_CONTENT id=\"ab%n\">>> "#),
    ),
    (
        "billing lines",
        system(r"x-anthropic-billing-header: cch=a%n;\n"),
    ),
    (
        "fields of a billing line",
        system("x-anthropic-billing-header: cch=a%n; "),
    ),
    (
        "environments",
        system(r"<env>\n  1. Date: 8/22/%n\n</env>\n"),
    ),
    ("data", system(r"Desk: %n\n")),
    (
        "data and documents",
        system(r"Desk: %n\n<document id='%n'>a</document>\n"),
    ),
    (
        "documents of a system message",
        system(r"<document id='%n'>a</document>\n"),
    ),
    (
        "documents side by side",
        system(r"<document id='%n'>a</document>"),
    ),
    ("elements", system(r"<now>%n</now>\n")),
    ("ideographic sentences", system("现在是%n。")),
    (
        "system messages with dates",
        [
            r#"{"messages":["#,
            r#"{"role":"system","content":"Current time: %n"},"#,
            r#"{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "system messages with dates, and a chat",
        [
            r#"{"messages":[{"role":"system","content":"Current time: 1\nCurrent time: 2\nCurrent time: 3\nSession ID: 4\nDesk: 5"},"#,
            r#"{"role":"user","content":"a%n"},{"role":"assistant","content":"b"},"#,
            r#"{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "tools",
        [
            r#"{"messages":[{"role":"user","content":"Why?"}],"tools":["#,
            r#"{"type":"function","function":{"name":"f%n","parameters":{"type":"object","properties":{"b":{},"a":{}},"required":["b","a"]}}},"#,
            r#"{"type":"function","function":{"name":"a"}}]}"#,
        ],
    ),
    (
        "tools of one name",
        [
            r#"{"messages":[{"role":"user","content":"Why?"}],"tools":["#,
            r#"{"type":"function","function":{"name":"f"}},"#,
            r#"{"type":"function","function":{"name":"a"}}]}"#,
        ],
    ),
    (
        "required parameters",
        [
            r#"{"messages":[{"role":"user","content":"Why?"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"required":["#,
            r#""a%n","#,
            r#""b"]}}}]}"#,
        ],
    ),
    (
        "the same required parameter",
        [
            r#"{"messages":[{"role":"user","content":"Why?"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"required":["#,
            r#""a","#,
            r#""b"]}}}]}"#,
        ],
    ),
    (
        "properties",
        [
            r#"{"messages":[{"role":"user","content":"Why?"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"#,
            r#""a%n":{"type":"string","enum":["b","a"]},"#,
            r#""b":{}}}}}]}"#,
        ],
    ),
    (
        "lists of required parameters",
        [
            r#"{"messages":[{"role":"user","content":"Why?"}],"tools":[{"type":"function","function":{"name":"f","parameters":["#,
            r#"{"required":["b","a"]},"#,
            r#"{}]}}]}"#,
        ],
    ),
    (
        "required in required",
        [
            r#"{"messages":[{"role":"user","content":"Why?"}],"tools":[{"type":"function","function":{"name":"f","parameters":"#,
            r#"{"properties":{"a":{"required":["b","a"],"properties":{"b":{}}}}},"#,
            r#"{"name":"b"}}]}"#,
        ],
    ),
    (
        "plain tools",
        [
            r#"{"messages":[{"role":"user","content":"Why?"}],"tools":["#,
            "%n,",
            "1]}",
        ],
    ),
    (
        "Anthropic's tools",
        [
            r#"{"system":"s","messages":[{"role":"user","content":"Why?"}],"tools":["#,
            r#"{"name":"f%n","input_schema":{"required":["b","a"]},"cache_control":{"type":"ephemeral"}},"#,
            r#"{"name":"a","input_schema":{}}]}"#,
        ],
    ),
    (
        "parts of a user message",
        [
            r#"{"messages":[{"role":"user","content":["#,
            r#"{"type":"text","text":"a%n"},"#,
            r#"{"type":"text","text":"Why?"}]}]}"#,
        ],
    ),
    (
        "marked parts of a user message",
        [
            r#"{"system":"s","messages":[{"role":"user","content":["#,
            r#"{"type":"text","text":"a%n","cache_control":{"type":"ephemeral","ttl":"1h"}},"#,
            r#"{"type":"text","text":"Why?"}]}]}"#,
        ],
    ),
    (
        "parts with two documents each",
        [
            r#"{"messages":[{"role":"user","content":["#,
            r#"{"type":"text","text":"<document id='%n'>a</document><document id='b%n'>b</document>"},"#,
            r#"{"type":"text","text":"Why?"}]}]}"#,
        ],
    ),
    (
        "Anthropic's documents",
        [
            r#"{"system":"s","messages":[{"role":"user","content":["#,
            r#"{"type":"document","source":{"type":"text","media_type":"text/plain","data":"a%n"},"title":"t%n"},"#,
            r#"{"type":"text","text":"Why?"}]}]}"#,
        ],
    ),
    (
        "search results",
        [
            r#"{"system":"s","messages":[{"role":"user","content":["#,
            r#"{"type":"search_result","source":"u%n","title":"t","content":[{"type":"text","text":"a%n"}]},"#,
            r#"{"type":"text","text":"Why?"}]}]}"#,
        ],
    ),
    (
        "tool results",
        [
            r#"{"system":"s","messages":[{"role":"user","content":["#,
            r#"{"type":"tool_result","tool_use_id":"t%n","content":"a%n"},"#,
            r#"{"type":"text","text":"Why?"}]}]}"#,
        ],
    ),
    (
        "documents of a user message",
        user("<document id='%n'>a%n</document>"),
    ),
    (
        "documents with lines between",
        user(r"<document id='%n'>a%n</document>\n"),
    ),
    ("the same document", user("<document id='1'>a</document>")),
    ("empty documents", user("<document></document>")),
    ("documents without ids", user("<document>%n</document>")),
    (
        "documents of one id",
        user("<document id='a'>%n</document>"),
    ),
    (
        "documents with scores",
        user(r"<document id='%n' score='0.%n'>[%n] a\nScore: 0.%n</document>"),
    ),
    ("documents with ranks", user(r"[%n] Source: a%n\nb\n\n")),
    (
        "sources of Open WebUI",
        user(r#"<source id=\"%n\" name=\"a\">b%n</source>\n"#),
    ),
    (
        "wrapped documents",
        user("<documents><document id='%n'>a</document></documents>"),
    ),
    (
        "documents in tags in tags",
        [
            r#"{"messages":[{"role":"user","content":""#,
            "<a>",
            r#"<document id='1'>a</document></a></a>"}]}"#,
        ],
    ),
    ("contexts", user(r"<context>\na%n\n</context>\n")),
    ("white space before a document", user(r"\n\t\r ")),
    (
        "white space behind a document",
        [
            r#"{"messages":[{"role":"user","content":"<document id='1'>a</document>"#,
            r"\n\t",
            r#""}]}"#,
        ],
    ),
    ("headings", user(r"## a%n\nb\n")),
    ("numbered documents", user(r"[%n] a\n")),
    ("rules between documents", user(r"a%n\n---\n")),
    (
        "an array of documents",
        [
            r#"{"messages":[{"role":"user","content":"Why?"}],"documents":["#,
            r#"{"id":"%n","text":"a%n"},"#,
            r#""b"]}"#,
        ],
    ),
    (
        "turns",
        [
            r#"{"messages":["#,
            r#"{"role":"user","content":"a%n"},{"role":"assistant","content":"b"},"#,
            r#"{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "turns with documents",
        [
            r#"{"messages":["#,
            r#"{"role":"user","content":"<document id='%n'>a%n</document><document id='b%n'>c</document> Why?"},{"role":"assistant","content":"b"},"#,
            r#"{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "turns with the same documents",
        [
            r#"{"messages":["#,
            r#"{"role":"user","content":"<document id='1'>a</document><document id='2'>c</document> Why?"},{"role":"assistant","content":"b"},"#,
            r#"{"role":"user","content":"<document id='2'>c</document><document id='1'>a</document> Why?"}]}"#,
        ],
    ),
    (
        "the same turn",
        [
            r#"{"messages":["#,
            r#"{"role":"user","content":"a"},{"role":"assistant","content":"b"},"#,
            r#"{"role":"user","content":"a"}]}"#,
        ],
    ),
    (
        "turns with contexts",
        [
            r#"{"messages":["#,
            r#"{"role":"user","content":"<context><document id='%n'>a</document></context>\n\nWhy %n?"},{"role":"assistant","content":"b"},"#,
            r#"{"role":"user","content":"<context><document id='1'>a</document></context>\n\nWhy?"}]}"#,
        ],
    ),
    (
        "turns of parts with contexts",
        [
            r#"{"messages":["#,
            r#"{"role":"user","content":[{"type":"text","text":"<context><document id='%n'>a</document></context>"},{"type":"text","text":"Why?"}]},{"role":"assistant","content":"b"},"#,
            r#"{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "a question's parts with contexts",
        [
            r#"{"messages":[{"role":"user","content":["#,
            r#"{"type":"text","text":"<context><document id='%n'>a</document></context>"},"#,
            r#"{"type":"text","text":"Why?"}]}]}"#,
        ],
    ),
    (
        "results of tools in turns",
        [
            r#"{"messages":["#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c%n","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c%n","content":"{\"results\":[{\"url\":\"a%n\",\"content\":\"b\"},{\"url\":\"c\",\"content\":\"d\"}]}"},"#,
            r#"{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "results of one tool",
        [
            r#"{"messages":[{"role":"tool","content":"{\"results\":["#,
            r#"{\"url\":\"a%n\",\"content\":\"b%n\"},"#,
            r#"{\"url\":\"c\"}]}"},{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "parameters",
        [
            r#"{"messages":[{"role":"user","content":"Why?"}],"chat_template_kwargs":{"#,
            r#""a%n":1,"#,
            r#""b":1}}"#,
        ],
    ),
    (
        "marked messages",
        [
            r#"{"system":"s","messages":["#,
            r#"{"role":"user","content":[{"type":"text","text":"a%n","cache_control":{"type":"ephemeral"}}]},{"role":"assistant","content":[{"type":"text","text":"b"}]},"#,
            r#"{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "cache points",
        [
            r#"{"system":[{"text":"s"}],"messages":[{"role":"user","content":["#,
            r#"{"text":"a%n"},{"cachePoint":{"type":"default"}},"#,
            r#"{"text":"Why?"}]}]}"#,
        ],
    ),
    (
        "items of Responses",
        [
            r#"{"input":["#,
            r#"{"role":"user","content":[{"type":"input_text","text":"<document id='%n'>a</document> Why %n?"}]},{"type":"function_call","call_id":"c%n","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c%n","output":"a"},"#,
            r#"{"role":"user","content":"Why?"}]}"#,
        ],
    ),
    (
        "escaped words",
        user(r"\u0061\u00e4<document id='%n'>\u4e2d</document>"),
    ),
];

/// A system text that repeats a fragment, before a question.
const fn system(repeated: &str) -> [&str; 3] {
    [
        r#"{"messages":[{"role":"system","content":""#,
        repeated,
        r#""},{"role":"user","content":"Why?"}]}"#,
    ]
}

/// A user's text that repeats a fragment, before its question.
const fn user(repeated: &str) -> [&str; 3] {
    [
        r#"{"messages":[{"role":"user","content":""#,
        repeated,
        r#" <document id='1'>a</document> Why?"}]}"#,
    ]
}

/// The same with a number of its own in each repetition, from `first` on.
pub(crate) fn numbered([before, repeated, after]: [&str; 3], bytes: usize, first: usize) -> String {
    let left = bytes.saturating_sub(before.len() + after.len());
    let mut body = before.to_owned();
    let mut number = first;
    while body.len() < before.len() + left {
        body.push_str(&repeated.replace("%n", &number.to_string()));
        number += 1;
    }
    body + after
}

/// Returns every shape of this file as requests that follow one another: with some numbers, with others, and with the first
/// again.
#[must_use]
pub fn requests(bytes: usize) -> Vec<(String, Vec<String>)> {
    let decisions = DECISIONS.iter().map(|(name, parts)| {
        let bodies = [100, 101, 100].map(|first| numbered(*parts, bytes, first));
        ((*name).to_owned(), bodies.to_vec())
    });
    let plain = bodies(bytes)
        .into_iter()
        .map(|(name, body)| (name, vec![body.clone(), body]));
    decisions.chain(plain).collect()
}
