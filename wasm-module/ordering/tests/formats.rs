//! Every format in which clients send documents: out equals in, whatever the order, and `documents_of` sees the same.

use foreword_ordering::policy::Placement;
use foreword_ordering::random::Random;
use foreword_ordering::{Config, Orderer, Skip, Tenant, documents_of};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A body, and its documents' bytes in it.
type Body = (String, Vec<String>);

/// A way of sending documents, which are known by their numbers.
struct Format {
    name: &'static str,
    body: fn(&[u32]) -> Body,
}

const FORMATS: [Format; 29] = [
    Format {
        name: "tags",
        body: |ids| {
            in_text(
                ids,
                "user",
                "Read.\n<docs>\n",
                "\n",
                "\n</docs>\nWhy?",
                |id| tagged("doc", id),
            )
        },
    },
    Format {
        name: "sources",
        body: |ids| {
            in_text(ids, "system", "As <source id=\"1\">.\n", "\n", "\n", |id| {
                tagged("source", id)
            })
        },
    },
    Format {
        name: "loose tags",
        body: |ids| {
            in_text(ids, "tool", "<files>", "", "</files>", |id| {
                tagged("file", id)
            })
        },
    },
    Format {
        name: "numbered",
        body: |ids| in_text(ids, "user", "Read:\n", "\n", "\n\nWhy [1]?", numbered),
    },
    Format {
        name: "numbered, of a tool",
        body: |ids| {
            in_text(ids, "tool", "", "\n\n", "\n", |id| {
                numbered(id) + "\n\nMore."
            })
        },
    },
    Format {
        name: "rules",
        body: |ids| {
            in_text(
                ids,
                "user",
                "Read:\n---\n",
                "\n---\n",
                "\n-----\nWhy?",
                words,
            )
        },
    },
    Format {
        name: "rules, of a tool",
        body: |ids| in_text(ids, "tool", "", "\n\n---\n\n", "", words),
    },
    Format {
        name: "headings",
        body: |ids| {
            in_text(ids, "function", "Found:\n", "\n\n", "\n", |id| {
                format!("# Title {id}\n{}", words(id))
            })
        },
    },
    Format {
        name: "results",
        body: |ids| {
            in_text(
                ids,
                "tool",
                "{\"n\":1, \"results\" :[ ",
                " ,\n",
                "]}",
                |id| result(id).to_string(),
            )
        },
    },
    Format {
        name: "blocks",
        body: |ids| {
            in_blocks(ids, "document", |blocks| {
                format!(
                    r#"[{{"type":"text","text":"Read."}},{blocks} , {{"type":"text","text":"Why?"}}]"#
                )
            })
        },
    },
    Format {
        name: "results in blocks",
        body: |ids| {
            in_blocks(ids, "search_result", |blocks| {
                format!(r#"[{{"type":"tool_result","tool_use_id":"t","content":[ {blocks}]}}]"#)
            })
        },
    },
    Format {
        name: "results in a block's text",
        body: |ids| {
            let (content, documents) = text(ids, "{\"results\":[", ",", "]}", |id| {
                result(id).to_string()
            });
            (
                format!(
                    r#"{{"messages":[{{"role":"user","content":[{{"content":{content},"type":"tool_result"}}]}}]}}"#
                ),
                documents,
            )
        },
    },
    Format {
        name: "system",
        body: |ids| {
            let (system, documents) = text(ids, "Read.\n", "\n", "\nBe brief.", |id| {
                tagged("document", id)
            });
            (
                format!(r#"{{"system":{system},"messages":[{{"role":"user","content":"Why?"}}]}}"#),
                documents,
            )
        },
    },
    Format {
        name: "Cohere",
        body: |ids| {
            let documents: Vec<String> = ids
                .iter()
                .map(|id| json!({"id": id, "data": {"snippet": words(*id)}}).to_string())
                .collect();
            (
                format!(
                    r#"{{"documents":[{}],"messages":[{{"role":"user","content":[]}}]}}"#,
                    documents.join(", ")
                ),
                documents,
            )
        },
    },
    Format {
        name: "Cohere, of a tool",
        body: |ids| {
            let documents: Vec<String> = ids
                .iter()
                .map(|id| {
                    let document = json!({"id": id.to_string(), "data": words(*id)});
                    json!({"type": "document", "document": document}).to_string()
                })
                .collect();
            (
                format!(
                    r#"{{"messages":[{{"role":"user","content":"Why?"}},{{"role":"tool","content":[{}]}}]}}"#,
                    documents.join(", ")
                ),
                documents,
            )
        },
    },
    Format {
        name: "Cohere's first",
        body: |ids| {
            let documents: Vec<String> = ids
                .iter()
                .map(|id| {
                    json!({"id": id.to_string(), "title": "T", "snippet": words(*id)}).to_string()
                })
                .collect();
            (
                format!(
                    r#"{{"preamble":"Be brief.","chat_history":[{{"role":"USER","message":"Hello"}},
                        {{"role":"CHATBOT","message":"Hello?"}}],"documents":[{}],"message":"Why?"}}"#,
                    documents.join(" ,")
                ),
                documents,
            )
        },
    },
    Format {
        name: "Cohere's first, in a message",
        body: |ids| {
            let (message, documents) =
                text(ids, "Read.\n", "\n", "\nWhy?", |id| tagged("document", id));
            (format!(r#"{{"message":{message}}}"#), documents)
        },
    },
    Format {
        name: "Responses, a string",
        body: |ids| {
            let (input, documents) = text(ids, "Read.\n", "\n", "\nWhy?", |id| tagged("doc", id));
            (
                format!(r#"{{"instructions":"Be brief.","input": {input},"stream":true}}"#),
                documents,
            )
        },
    },
    Format {
        name: "Responses, a message's parts",
        body: |ids| {
            let (text, documents) = text(ids, "Read.\n", "\n", "", |id| tagged("doc", id));
            in_items(
                &format!(
                    r#"{{"type":"message","role":"user","content":[{{"type":"input_text","text":{text}}},
                    {{"type":"input_image","image_url":"data:<doc>"}},{{"type":"input_text","text":"Why?"}}]}}"#
                ),
                documents,
            )
        },
    },
    Format {
        name: "Responses, a function's output",
        body: |ids| {
            let (output, documents) = text(ids, "{\"results\":[", ",", "]}", |id| {
                result(id).to_string()
            });
            in_items(
                &format!(
                    r#"{{"type":"function_call","call_id":"c","name":"f","arguments":"{{\"q\":\"<doc>a</doc>\"}}"}},
                    {{"type":"function_call_output","call_id":"c","output":{output}}}"#
                ),
                documents,
            )
        },
    },
    Format {
        name: "Responses, a custom tool's output in parts",
        body: |ids| {
            let (output, documents) = text(ids, "", "\n\n---\n\n", "", words);
            in_items(
                &format!(
                    r#"{{"type":"custom_tool_call","call_id":"c","name":"f","input":"<doc>a</doc>"}},
                    {{"type":"custom_tool_call_output","call_id":"c","output":[{{"type":"input_text","text":{output}}}]}}"#
                ),
                documents,
            )
        },
    },
    Format {
        name: "Responses, a file search",
        body: |ids| {
            let documents: Vec<String> = ids.iter().map(|id| {
                json!({"file_id": format!("file-{id}"), "filename": format!("{id}.md"), "score": 0.5, "text": words(*id), "attributes": {}}).to_string()
            }).collect();
            in_items(
                &format!(
                    r#"{{"type":"file_search_call","id":"fs_1","queries":["<doc>a</doc>"],"status":"completed","results":[ {}]}}"#,
                    documents.join(" ,\n")
                ),
                documents,
            )
        },
    },
    Format {
        name: "Gemini",
        body: |ids| {
            let (text, documents) = text(ids, "Read.\n", "\n", "", |id| tagged("document", id));
            (
                format!(
                    r#"{{"systemInstruction":{{"parts":[{{"text":"Be brief."}}]}},"contents":[{{"role":"user","parts":[{{"text":"Hello"}}]}},
                        {{"role":"model","parts":[{{"text":"Hello?"}}]}},{{"parts":[{{"text":{text}}},{{"text":"Why?"}}]}}],
                        "cachedContent":"cachedContents/1"}}"#
                ),
                documents,
            )
        },
    },
    Format {
        name: "Gemini's system text",
        body: |ids| {
            let (text, documents) = text(ids, "Read.\n", "\n", "\nBe brief.", |id| {
                tagged("document", id)
            });
            (
                format!(
                    r#"{{"system_instruction":{{"parts":[{{"text":{text}}}]}},"contents":[{{"parts":[{{"text":"Why?"}}]}}]}}"#
                ),
                documents,
            )
        },
    },
    Format {
        name: "Gemini, a function's text",
        body: |ids| {
            let (text, documents) = text(ids, "", "\n\n", "", |id| numbered(id) + "\n\nMore.");
            in_response(
                &format!(r#"{{"name":"f","response":{{"n":1,"result":{text}}}}}"#),
                documents,
            )
        },
    },
    Format {
        name: "Gemini, a function's results",
        body: |ids| {
            let documents: Vec<String> = ids.iter().map(|id| result(*id).to_string()).collect();
            let (body, documents) = in_response(
                &format!(
                    r#"{{"id":"1","name":"f","response":{{"n":1, "results" :[ {}],"output":"Done."}}}}"#,
                    documents.join(" , ")
                ),
                documents,
            );
            // Both spellings are in use.
            (
                body.replace("functionResponse", "function_response"),
                documents,
            )
        },
    },
    Format {
        name: "Converse",
        body: |ids| {
            let documents: Vec<String> = ids.iter().map(|id| in_converse(*id)).collect();
            (
                format!(
                    r#"{{"system":[{{"text":"Be brief."}},{{"cachePoint":{{"type":"default"}}}}],"messages":[{{"role":"user","content":[{{"text":"Read."}},{},{{"text":"Why?"}}]}}]}}"#,
                    documents.join(", ")
                ),
                documents,
            )
        },
    },
    Format {
        name: "Converse, a tool's documents",
        body: |ids| {
            let documents: Vec<String> = ids.iter().map(|id| in_converse(*id)).collect();
            in_tool_result(&documents.join(" ,"), documents)
        },
    },
    Format {
        name: "Converse, a tool's JSON",
        body: |ids| {
            let documents: Vec<String> = ids.iter().map(|id| result(*id).to_string()).collect();
            in_tool_result(
                &format!(r#"{{"json":{{"results":[{}]}}}}"#, documents.join(",")),
                documents,
            )
        },
    },
];

/// A body of Responses with every kind of item that is left alone, and then these.
fn in_items(items: &str, documents: Vec<String>) -> Body {
    (
        format!(
            r#"{{"model":"m","previous_response_id":"resp_1","input":[{{"role":"developer","content":"Be brief."}},
                {{"role":"user","content":"Hello"}},{{"id":"rs_1","type":"reasoning","summary":[{{"type":"summary_text","text":"<doc>a</doc><doc>b</doc>"}}]}},
                {{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{{"type":"output_text","text":"Hello?","annotations":[]}}]}},
                {{"type":"web_search_call","id":"ws_1","action":{{"query":"<doc>a</doc><doc>b</doc>"}}}},
                {{"type":"item_reference","id":"msg_2"}}, {{"id":"msg_3"}}, {{"type":"later","content":"<doc>a</doc><doc>b</doc>"}}, 7, {items}]}}"#
        ),
        documents,
    )
}

/// A body of Gemini's with what a function gave.
fn in_response(response: &str, documents: Vec<String>) -> Body {
    (
        format!(
            r#"{{"contents":[{{"role":"user","parts":[{{"text":"Why?"}}]}},{{"role":"model","parts":[{{"functionCall":{{"name":"f","args":{{}}}}}}]}},
                {{"role":"user","parts":[{{"functionResponse":{response}}}]}}]}}"#
        ),
        documents,
    )
}

/// A body of Converse's with what a tool gave.
fn in_tool_result(content: &str, documents: Vec<String>) -> Body {
    (
        format!(
            r#"{{"messages":[{{"role":"user","content":[{{"text":"Why?"}}]}},{{"role":"assistant","content":[{{"toolUse":{{"toolUseId":"t","name":"f","input":{{}}}}}}]}},
                {{"role":"user","content":[{{"toolResult":{{"toolUseId":"t","content":[{content}],"status":"success"}}}}]}}]}}"#
        ),
        documents,
    )
}

/// A document as Converse has it.
fn in_converse(id: u32) -> String {
    let source = match id % 2 {
        0 => json!({"text": words(id)}),
        _ => json!({"content": [{"text": words(id)}]}),
    };
    json!({"document": {"format": "txt", "name": format!("Document {id}"), "source": source}})
        .to_string()
}

/// Everything is looked for, and the policy moves whatever it finds.
fn config() -> Value {
    json!({
        "policy": "random",
        "hint": {"enabled": false},
        "documents": {"field": "reorder", "numbered": true, "rules": true, "headings": true},
        "conversation": {"deduplicate": false}
    })
}

fn checked(config: &Value) -> Config {
    Config::from_json(config.to_string().as_bytes())
        .unwrap()
        .with_placement(Placement::FREE)
}

fn words(id: u32) -> String {
    format!("Words \"é\"\\ of {id};\tmore [{id}] # {id} --- of it.")
}

fn tagged(name: &str, id: u32) -> String {
    format!("<{name} n='1' id=\"{id}\">{}</{name}>", words(id))
}

fn numbered(id: u32) -> String {
    format!("[{id}] {}", words(id))
}

fn result(id: u32) -> Value {
    json!({"title": "Title", "href": format!("https://example.org/{id}"), "text": words(id), "score": 0.5})
}

/// A JSON string of documents between other words, and the documents as they stand in it.
fn text(
    ids: &[u32],
    before: &str,
    between: &str,
    after: &str,
    document: fn(u32) -> String,
) -> Body {
    let escaped = |text: &str| {
        let quoted = Value::from(text).to_string();
        quoted[1..quoted.len() - 1].to_owned()
    };
    let documents: Vec<String> = ids.iter().map(|id| document(*id)).collect();
    let text = [before, &documents.join(between), after].concat();
    let documents = documents.iter().map(|document| escaped(document)).collect();
    (format!("\"{}\"", escaped(&text)), documents)
}

/// A message whose content is such a string.
fn in_text(
    ids: &[u32],
    role: &str,
    before: &str,
    between: &str,
    after: &str,
    document: fn(u32) -> String,
) -> Body {
    let (content, documents) = text(ids, before, between, after, document);
    (
        format!(r#"{{ "messages" : [{{"role":"{role}","content": {content}}}], "seed": 1e3 }}"#),
        documents,
    )
}

/// A message whose content is made of blocks.
fn in_blocks(ids: &[u32], kind: &str, content: fn(&str) -> String) -> Body {
    let block = |id: &u32| json!({"type": kind, "source": format!("s{id}"), "content": [{"type": "text", "text": words(*id)}]});
    let documents: Vec<String> = ids.iter().map(|id| block(id).to_string()).collect();
    let content = content(&documents.join(", "));
    (
        format!(r#"{{"system":"Be brief.","messages":[{{"role":"user","content":{content}}}]}}"#),
        documents,
    )
}

/// `text` with every one of `documents` replaced, and how often each was there.
fn without(text: &str, documents: &[String]) -> (String, Vec<usize>) {
    let counts = documents
        .iter()
        .map(|document| text.matches(document).count());
    let rest = documents.iter().fold(text.to_owned(), |text, document| {
        text.replace(document, "§")
    });
    (rest, counts.collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The multiset of documents and every byte around them; with the right number of them found.
    #[test]
    fn every_format_keeps_its_documents_and_its_other_bytes(which in 0..FORMATS.len(), seed in any::<u64>(), count in 2_usize..7) {
        let format = &FORMATS[which];
        let mut random = Random::new(seed);
        let mut config = config();
        config["policy_options"] = json!({"seed": seed});
        let mut orderer = Orderer::new(checked(&config));
        for _ in 0..4 {
            let mut ids: Vec<u32> = (1..10).collect();
            random.shuffle(&mut ids);
            ids.truncate(count);
            let (body, documents) = (format.body)(&ids);
            let rewrite = orderer.rewrite(Tenant::default(), body.as_bytes()).unwrap();
            prop_assert_eq!(rewrite.report.documents as usize, count, "{}: {}", format.name, body);
            let out = rewrite.body.map_or(body.clone(), |body| String::from_utf8(body).unwrap());
            prop_assert_eq!(without(&body, &documents), without(&out, &documents), "{}", format.name);
            prop_assert!(serde_json::from_str::<Value>(&out).is_ok());
            let listed = documents_of(body.as_bytes(), &checked(&config)).unwrap();
            prop_assert_eq!(listed.iter().map(|request| request.documents.len()).sum::<usize>(), count);
        }
    }
}

#[test]
fn every_format_is_moved_and_can_be_switched_off() {
    let off = json!({"documents": {"field": "ignore", "tags": [], "loose_tags": [], "blocks": false, "results": false}});
    for Format { name, body } in FORMATS {
        let (body, _) = body(&[5, 2, 8, 1, 7]);
        let mut orderer = Orderer::new(checked(&config()));
        let moved: u32 = (0..4)
            .map(|_| {
                orderer
                    .rewrite(Tenant::default(), body.as_bytes())
                    .unwrap()
                    .report
                    .moved
            })
            .sum();
        assert!(moved > 0, "{name}");
        let refused = Orderer::new(checked(&off)).rewrite(Tenant::default(), body.as_bytes());
        assert_eq!(refused.err(), Some(Skip::NoDocuments), "{name}");
    }
}

#[test]
fn on_request_means_only_on_request() {
    for Format { name, body } in &FORMATS[3..8] {
        let (body, _) = body(&[1, 2, 3]);
        let refused = Orderer::new(Config::default().with_placement(Placement::FREE))
            .rewrite(Tenant::default(), body.as_bytes());
        assert_eq!(refused.err(), Some(Skip::NoDocuments), "{name}");
    }
}

/// An answer that cites documents by their places would cite others if they moved.
#[test]
fn documents_that_an_answer_counts_stay_where_they_are() {
    let cited = |id: u32| json!({"type": "document", "title": id, "source": {}, "citations": {"enabled": true}});
    let blocks = json!({"messages": [{"role": "user", "content": [cited(1), cited(2), {"type": "text", "text": "?"}]}]});
    let unnamed = |id: u32| json!({"data": {"text": words(id)}});
    let cohere = json!({"documents": [unnamed(1), unnamed(2)], "messages": [{"role": "user", "content": "?"}]});
    let snippet = |id: u32| json!({"title": "T", "snippet": words(id)});
    let first = json!({"documents": [snippet(1), snippet(2)], "message": "?"});
    let inside = |id: u32| json!({"type": "document", "document": unnamed(id)});
    let of_tool = json!({"messages": [{"role": "tool", "content": [inside(1), inside(2)]}]});
    let converse = |id: u32| json!({"document": {"name": id.to_string(), "source": {"text": words(id)}, "citations": {"enabled": true}}});
    let converse = json!({"messages": [{"role": "user", "content": [converse(1), converse(2), {"text": "?"}]}]});
    for body in [blocks, cohere, first, of_tool, converse] {
        let refused = Orderer::new(checked(&config()))
            .rewrite(Tenant::default(), body.to_string().as_bytes());
        assert_eq!(refused.err(), Some(Skip::NoDocuments), "{body}");
    }
}

/// A file that a model wrote is not a document that somebody gave it, in any format.
#[test]
fn what_a_model_wrote_for_itself_is_not_looked_into() {
    let text = "<file path=\"a\">x</file>\n<file path=\"b\">y</file>";
    let blocks =
        json!([{"type": "document", "title": "A", "source": {}}, {"type": "text", "text": text}]);
    for body in [
        json!({"messages": [{"role": "assistant", "content": text}, {"role": "user", "content": "?"}]}),
        json!({"messages": [{"role": "assistant", "content": blocks}, {"role": "user", "content": "?"}]}),
        json!({"input": [{"role": "assistant", "content": [{"type": "output_text", "text": text}]}, {"role": "user", "content": "?"}]}),
        json!({"contents": [{"role": "model", "parts": [{"text": text}]}, {"parts": [{"text": "?"}]}]}),
        json!({"chat_history": [{"role": "CHATBOT", "message": text}], "message": "?"}),
    ] {
        let refused = Orderer::new(checked(&config()))
            .rewrite(Tenant::default(), body.to_string().as_bytes());
        assert_eq!(refused.err(), Some(Skip::NoDocuments), "{body}");
    }
}

/// Cohere's answers cite documents by id, and nobody else reads its first API's bodies: no array is written into a message
/// there, though others are.
#[test]
fn documents_of_coheres_first_api_stay_in_their_array() {
    let snippet = |id: u32| json!({"id": id.to_string(), "snippet": words(id)});
    let body = json!({"documents": [snippet(1), snippet(2)], "message": "?"});
    let turned = json!({"documents": [snippet(2), snippet(1)], "message": "?"});
    let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
    let first = orderer.rewrite(Tenant::default(), body.to_string().as_bytes());
    assert_eq!(first.unwrap().body, None);
    let second = orderer.rewrite(Tenant::default(), turned.to_string().as_bytes());
    let out: Value = serde_json::from_slice(&second.unwrap().body.unwrap()).unwrap();
    assert_eq!(out["documents"], body["documents"]);
}

/// A chat of Cohere's first API goes on as one of any other.
#[test]
fn a_chat_of_coheres_first_api_is_known_again() {
    let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
    let first = "<doc id='a'>What A says of it, at such length that it is worth a reference to it</doc> Why?";
    let opening = json!({"message": first}).to_string();
    orderer
        .rewrite(Tenant::default(), opening.as_bytes())
        .unwrap();
    let going_on = json!({
        "chat_history": [{"role": "USER", "message": first}, {"role": "CHATBOT", "message": "So."}],
        "message": "<doc id='a'>What A says of it, at such length that it is worth a reference to it</doc> And then?",
    });
    let rewrite = orderer
        .rewrite(Tenant::default(), going_on.to_string().as_bytes())
        .unwrap();
    assert_eq!(
        (rewrite.report.deduplicated, rewrite.report.replayed),
        (1, 1)
    );
    let out: Value = serde_json::from_slice(&rewrite.body.unwrap()).unwrap();
    assert_eq!(out["chat_history"], going_on["chat_history"]);
}

/// JSON without an empty place: a repeat is sent again, where a tagged one would be left out.
#[test]
fn places_that_must_be_filled_are() {
    let new = [
        "Responses, a function's output",
        "Responses, a file search",
        "Gemini, a function's results",
        "Converse",
        "Converse, a tool's documents",
        "Converse, a tool's JSON",
    ];
    let new = FORMATS.iter().filter(|format| new.contains(&format.name));
    for Format { name, body } in FORMATS[8..16].iter().chain(new) {
        if *name == "system" {
            continue;
        }
        let (body, documents) = body(&[3, 1, 3, 2, 1]);
        let mut orderer = Orderer::new(checked(&config()));
        for _ in 0..3 {
            let rewrite = orderer.rewrite(Tenant::default(), body.as_bytes()).unwrap();
            let out = rewrite
                .body
                .map_or(body.clone(), |body| String::from_utf8(body).unwrap());
            assert_eq!(rewrite.report.dropped, 0);
            assert_eq!(
                without(&body, &documents),
                without(&out, &documents),
                "{name}"
            );
        }
    }
}

/// Anthropic's system prompt comes before the messages, and who asks is part of the chat.
#[test]
fn a_system_prompt_is_part_of_what_precedes_documents() {
    let body = |system: &str| {
        let user = json!({"role": "user", "content": "<doc id='a'>A</doc><doc id='b'>B</doc>?"});
        json!({"system": system, "messages": [user]}).to_string()
    };
    let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
    for (system, matched) in [("x", 0), ("x", 2), ("y", 0), ("y", 2)] {
        let rewrite = orderer
            .rewrite(Tenant::default(), body(system).as_bytes())
            .unwrap();
        assert_eq!(rewrite.report.matched, matched, "{system}");
    }
}

/// What a chat sends at its first turn and at its second, with these words in it.
type Turns = fn(&str, &str) -> [Value; 2];

const DOCUMENT: &str =
    "<doc id='a'>What A says of it, at such length that it is worth a reference to it</doc>";

/// Chats of the formats whose messages are not called so.
const CHATS: [(&str, Turns); 4] = [
    ("Responses", |first, second| {
        let question = json!({"role": "user", "content": first});
        let thought = json!({"type": "reasoning", "id": "r", "summary": []});
        let said = [json!({"type": "output_text", "text": "So."})];
        let said = json!({"type": "message", "role": "assistant", "content": said});
        let next = json!({"type": "message", "role": "user", "content": second});
        [
            json!({"instructions": "x", "input": [question]}),
            json!({"instructions": "x", "input": [question, thought, said, next]}),
        ]
    }),
    ("Responses, behind calls", |first, second| {
        let question = json!({"role": "user", "content": [{"type": "input_text", "text": first}]});
        let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
        let output = json!({"type": "function_call_output", "call_id": "c", "output": second});
        [
            json!({"input": [question]}),
            json!({"input": [question, {"type": "reasoning", "id": "r", "summary": []}, call, output]}),
        ]
    }),
    ("Gemini", |first, second| {
        let said = |role: &str, text: &str| json!({"role": role, "parts": [{"text": text}]});
        [
            json!({"contents": [said("user", first)]}),
            json!({"contents": [said("user", first), said("model", "So."), said("user", second)]}),
        ]
    }),
    ("Converse", |first, second| {
        let said = |role: &str, text: &str| json!({"role": role, "content": [{"text": text}]});
        [
            json!({"messages": [said("user", first)]}),
            json!({"messages": [said("user", first), said("assistant", "So."), said("user", second)]}),
        ]
    }),
];

#[test]
fn a_chat_of_every_format_is_known_again_by_its_messages() {
    for (name, turns) in CHATS {
        let [first, second] = turns(
            &format!("{DOCUMENT} Why?"),
            &format!("{DOCUMENT} And then?"),
        );
        let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
        orderer
            .rewrite(Tenant::default(), first.to_string().as_bytes())
            .unwrap();
        let rewrite = orderer
            .rewrite(Tenant::default(), second.to_string().as_bytes())
            .unwrap();
        assert_eq!(
            (rewrite.report.deduplicated, rewrite.report.replayed),
            (1, 1),
            "{name}"
        );
        let out = String::from_utf8(rewrite.body.unwrap()).unwrap();
        assert_eq!(out.matches("What A says").count(), 1, "{name}: {out}");
        assert!(out.contains("And then?"), "{name}: {out}");
    }
}

/// What the server keeps stands before the documents of a request, so it is part of what precedes them.
#[test]
fn what_a_server_keeps_precedes_the_documents() {
    let text = "<doc id='a'>A</doc><doc id='b'>B</doc>?";
    let responses = |field: &str, value: Value| json!({"input": text, field: value}).to_string();
    let gemini = |cached: &str| {
        json!({"contents": [{"parts": [{"text": text}]}], "cachedContent": cached}).to_string()
    };
    let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
    for (body, matched) in [
        (responses("previous_response_id", json!("resp_1")), 0),
        (responses("previous_response_id", json!("resp_1")), 2),
        (responses("previous_response_id", json!("resp_2")), 0),
        (responses("conversation", json!("resp_1")), 0),
        (responses("conversation", json!({"id": "c"})), 0),
        (responses("conversation", json!({"id": "c"})), 2),
        (responses("instructions", json!("x")), 0),
        (responses("instructions", json!("x")), 2),
        (responses("previous_response_id", Value::Null), 0),
        (responses("conversation", Value::Null), 2),
        (gemini("cachedContents/1"), 0),
        (gemini("cachedContents/1"), 2),
        (gemini("cachedContents/2"), 0),
    ] {
        let rewrite = orderer.rewrite(Tenant::default(), body.as_bytes()).unwrap();
        assert_eq!(rewrite.report.matched, matched, "{body}");
    }
}

/// Gemini and Bedrock name the model in the path.
#[test]
fn a_body_without_a_model_gets_one_and_keeps_its_own() {
    let body = json!({"contents": [{"parts": [{"text": "<doc>a</doc><doc>b</doc>"}]}]}).to_string();
    let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
    for (model, matched) in [("x", 0), ("y", 0), ("x", 2)] {
        let mut parsed = foreword_ordering::parse(body.as_bytes(), orderer.config()).unwrap();
        parsed.for_model(model).unwrap();
        let options = foreword_ordering::RewriteOptions::default();
        let rewrite = orderer.rewrite_parsed(&options, Tenant::default(), &mut parsed);
        assert_eq!(rewrite.unwrap().report.matched, matched, "{model}");
    }
    let config = Config::default().with_placement(Placement::FREE);
    let mut named = foreword_ordering::parse(br#"{"model":"m","input":"a"}"#, &config).unwrap();
    named.for_model("x").unwrap();
    assert_eq!(named.model(), "m");
    let mut parsed = foreword_ordering::parse(body.as_bytes(), &config).unwrap();
    let refused = parsed.for_model(&"m".repeat(513));
    assert_eq!(
        refused,
        Err(Skip::LongModelName {
            bytes: 513,
            limit: 512
        })
    );
}

/// A field of that name is another thing in a chat completion.
#[test]
fn another_formats_fields_are_unknown_ones_where_there_are_messages() {
    let user = json!({"role": "user", "content": "<doc>a</doc><doc>b</doc>"});
    for (field, value) in [
        ("input", json!("<doc>c</doc>")),
        ("input", json!([1, 2, 3])),
        ("input", json!(7)),
        ("contents", json!({"parts": [{"text": "<doc>c</doc>"}]})),
        ("chat_history", json!("x")),
        ("instructions", json!({"parts": 7})),
        ("toolConfig", json!("x")),
        ("text", json!("x")),
        ("reasoning", json!(null)),
    ] {
        let body = json!({"messages": [user], field: value}).to_string();
        let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
        let rewrite = orderer.rewrite(Tenant::default(), body.as_bytes()).unwrap();
        assert_eq!(rewrite.report.documents, 2, "{body}");
    }
}

/// Returns the body that is sent for `body`.
fn sent_for(orderer: &mut Orderer, body: Value) -> Value {
    let text = body.to_string();
    let rewrite = orderer.rewrite(Tenant::default(), text.as_bytes()).unwrap();
    let sent = rewrite
        .body
        .map(|sent| serde_json::from_slice(&sent).unwrap());
    sent.unwrap_or(body)
}

/// A hint would be read as part of the string.
#[test]
fn no_hint_is_written_into_a_string_within_the_text() {
    let mut orderer = Orderer::new(checked(&json!({})));
    let element =
        |id: u32| json!({"text": format!("<document id=\"{id}\">{}</document>", words(id))});
    let text = |ids: [u32; 3]| format!("Search results:\n{}", json!(ids.map(element)));
    for ids in [[1, 2, 3], [3, 2, 1]] {
        let body = json!({"messages": [{"role": "user", "content": text(ids)}]});
        let sent = sent_for(&mut orderer, body);
        assert_eq!(sent["messages"][0]["content"], text([1, 2, 3]));
    }
}

/// A document rendered as text would lose the fields other than its id, title and text.
#[test]
fn an_array_with_fields_that_are_not_rendered_is_put_in_order_only() {
    let forms: [fn(u32) -> Value; 6] = [
        |id| json!({"id": id.to_string(), "data": {"snippet": words(id), "date": "2019-03-01"}}),
        |id| json!({"id": id.to_string(), "data": {"snippet": words(id), "text": "abstract"}}),
        |id| json!({"id": id.to_string(), "data": {"snippet": words(id), "title": 2019}}),
        |id| json!({"id": id.to_string(), "data": {"snippet": words(id), "id": "other"}}),
        |id| json!({"id": id.to_string(), "title": "T", "data": {"snippet": words(id)}}),
        |id| json!({"id": id.to_string(), "text": words(id), "content": "abstract"}),
    ];
    for document in forms {
        let mut orderer = Orderer::new(checked(&json!({})));
        let documents = |ids: [u32; 3]| json!(ids.map(document));
        for ids in [[1, 2, 3], [3, 2, 1]] {
            let body = json!({"documents": documents(ids), "messages": [{"role": "user", "content": "Why?"}]});
            let sent = sent_for(&mut orderer, body);
            assert_eq!(sent["documents"], documents([1, 2, 3]));
        }
    }
}
