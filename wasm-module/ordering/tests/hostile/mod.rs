//! Bodies that are made to cost their reader: one fragment of a syntax over and over, nested or never closed. Used by the
//! core's tests, by the fuzz targets as seeds, and by the measurement of hostile bodies.
#![allow(dead_code, reason = "not everybody takes all of it")]

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
