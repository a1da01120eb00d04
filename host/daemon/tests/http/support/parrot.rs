//! A backend that says what its prompt tells it to say, one byte per token.
//!
//! | the prompt contains | the answer |
//! | --- | --- |
//! | `say(TEXT)` | TEXT of the last such place, then the end token |
//! | `forever` | `a` without end |
//! | neither | the end token |
//!
//! Its KV state is the tokens themselves, stored by page and slot, and it knows a sequence only from there. So an
//! answer is right only if engine and cache passed the right pages.

use foreword_engine::TokenId;
use foreword_engine::backend::{Backend, BackendError, BackendShape, Output, PageId, Step};
use serde_json::{Map, json};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

const PAGE_TOKENS: u32 = 16;
pub(crate) const PAGES: u32 = 1 << 18;
pub(crate) const MAX_POSITIONS: u32 = (2 << 20) + (1 << 16);
pub(crate) const VOCABULARY: u32 = 259;

/// Tokens 0 to 255 are bytes.
const USER: TokenId = 256;
const ASSISTANT: TokenId = 257;
const END: TokenId = 258;

pub(crate) const TEMPLATE: &str = "\
{%- for document in documents or [] %}[{{ document.id }}: {{ document.text }}]{% endfor %}\
{%- if tools %}{{ tools | tojson }}{% endif %}\
{%- for message in messages %}\
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}\
{{- raise_exception('unknown role ' ~ message.role) }}\
{%- endif %}<|user|>{{ message.content }}{% endfor %}<|assistant|>";

/// A backend whose answer is in its prompt, by the table above.
pub(crate) struct Parrot {
    slots: Vec<TokenId>,
    pages: u32,
    steps: Steps,
}

impl Parrot {
    pub(crate) fn new(steps: Steps) -> Self {
        Self {
            slots: Vec::new(),
            pages: 0,
            steps,
        }
        .with_pages(PAGES)
    }

    pub(crate) fn with_pages(self, pages: u32) -> Self {
        Self {
            slots: vec![0; (pages * PAGE_TOKENS) as usize],
            pages,
            ..self
        }
    }

    fn slot(pages: &[PageId], position: u32) -> usize {
        (pages[(position / PAGE_TOKENS) as usize].0 * PAGE_TOKENS + position % PAGE_TOKENS) as usize
    }
}

impl Backend for Parrot {
    fn shape(&self) -> BackendShape {
        BackendShape {
            vocabulary: VOCABULARY,
            max_positions: MAX_POSITIONS,
            page_tokens: PAGE_TOKENS,
            pages: self.pages,
            host_pages: 0,
            page_bytes: 0,
            draws: false,
        }
    }

    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        self.steps.take(step);
        logits.clear();
        for segment in &step.segments {
            for (position, token) in (segment.start..).zip(&segment.tokens) {
                self.slots[Self::slot(&segment.pages, position)] = *token;
            }
            let length = segment.start + segment.tokens.len() as u32;
            let history = |length| {
                (0..length)
                    .map(|at| self.slots[Self::slot(&segment.pages, at)])
                    .collect::<Vec<_>>()
            };
            let rows = match segment.output {
                Output::None => continue,
                Output::Last | Output::Token(_) => length..=length,
                Output::All => segment.start + 1..=length,
            };
            for length in rows {
                let next = next(&history(length));
                if next == BROKEN {
                    return Err(BackendError::Device(
                        "feathers on the secret bus".to_owned(),
                    ));
                }
                let row = logits.len();
                logits.resize(row + VOCABULARY as usize, 0.0);
                logits[row + next as usize] = 1e4;
            }
        }
        Ok(())
    }

    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError> {
        let start = Self::slot(&[from], 0);
        self.slots
            .copy_within(start..start + tokens as usize, Self::slot(&[to], 0));
        Ok(())
    }
}

/// Not a token: makes the device fail.
const BROKEN: TokenId = TokenId::MAX;

fn next(history: &[TokenId]) -> TokenId {
    let find = |tokens: &[TokenId], text: &str| {
        let text: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
        tokens
            .windows(text.len())
            .rposition(|window| window == text)
    };
    // The answer so far begins after the assistant's mark or, in a raw prompt, after the order itself.
    let (prompt, said) = match history.iter().rposition(|token| *token == ASSISTANT) {
        Some(mark) => (&history[..mark], history.len() - mark - 1),
        None => (history, 0),
    };
    if let Some(order) = find(prompt, "say(") {
        let text = &prompt[order + 4..];
        let end = text
            .iter()
            .position(|token| *token == u32::from(b')'))
            .unwrap_or(text.len());
        let said = said
            + (text.len() - end).saturating_sub(1) * usize::from(prompt.len() == history.len());
        return text[..end].get(said).copied().unwrap_or(END);
    }
    match () {
        () if find(prompt, "break").is_some() => BROKEN,
        () if find(prompt, "forever").is_some() => u32::from(b'a'),
        () => END,
    }
}

/// Each step takes a permit, so that a test can hold the backend. Also counts the computed tokens.
#[derive(Clone)]
pub(crate) struct Steps(Arc<(Mutex<Permits>, Condvar)>);

#[derive(Default)]
struct Permits {
    /// Steps that may still be computed; `None` for any number.
    left: Option<u32>,
    computed_tokens: u64,
}

impl Steps {
    pub(crate) fn free() -> Self {
        Self(Arc::default())
    }

    /// Lets only `permits` more steps be computed.
    pub(crate) fn hold(&self, permits: u32) {
        self.0.0.lock().unwrap().left = Some(permits);
        self.0.1.notify_all();
    }

    /// Lets any number of steps be computed.
    pub(crate) fn release(&self) {
        self.0.0.lock().unwrap().left = None;
        self.0.1.notify_all();
    }

    /// Returns the number of tokens computed so far.
    pub(crate) fn computed_tokens(&self) -> u64 {
        self.0.0.lock().unwrap().computed_tokens
    }

    fn take(&self, step: &Step) {
        let mut permits = self
            .0
            .1
            .wait_while(self.0.0.lock().unwrap(), |permits| permits.left == Some(0))
            .unwrap();
        permits.left = permits.left.map(|left| left - 1);
        let tokens = step.segments.iter().map(|segment| segment.tokens.len());
        permits.computed_tokens += tokens.sum::<usize>() as u64;
    }
}

/// Writes the files of a parrot's checkpoint: a byte-level tokenizer, a template, a configuration.
pub(crate) fn write_checkpoint(folder: &Path, template: Option<&str>) {
    let write = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).expect("a writable folder");
    };
    let vocabulary: Map<_, _> = byte_alphabet()
        .iter()
        .zip(0..)
        .map(|(c, id)| (c.to_string(), json!(id)))
        .collect();
    let special = |(id, content): (u32, &str)| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    };
    let marks = [
        (USER, "<|user|>"),
        (ASSISTANT, "<|assistant|>"),
        (END, "<|end|>"),
    ];
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": marks.map(special),
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocabulary, "merges": []},
    });
    write("tokenizer.json", tokenizer.to_string());
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 16,
        "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true, "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_POSITIONS, "eos_token_id": END,
    });
    write("config.json", config.to_string());
    if let Some(template) = template {
        write("chat_template.jinja", template.to_owned());
    }
}

/// Returns GPT-2's printable characters for the 256 bytes, in order.
fn byte_alphabet() -> Vec<char> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let stand_in = |byte| {
        if printable(byte) {
            Some(byte)
        } else {
            others.next()
        }
    };
    (0..=0xff)
        .filter_map(stand_in)
        .filter_map(char::from_u32)
        .collect()
}
