//! The class `Orderer`: orders requests in the page, as the gateway would.

use crate::values::{self, refused, refused_argument};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::tree::{ViewedEdge, ViewedNode};
use foreword_ordering::{Report, StandaloneDocument, Tenant, documents_of};
use foreword_ordering::{hexadecimal, object};
use serde::Serialize;
use wasm_bindgen::prelude::*;

/// Orders documents so that a prompt begins like an earlier one, and records what was sent.
#[wasm_bindgen]
pub struct Orderer {
    core: foreword_ordering::Orderer,
}

#[wasm_bindgen]
impl Orderer {
    /// Returns an orderer without history. `config` is the gateway's `ordering`.
    ///
    /// # Errors
    /// Throws if `config` has an unknown field, or a value out of its range.
    #[wasm_bindgen(constructor)]
    pub fn new(
        #[wasm_bindgen(unchecked_optional_param_type = "Config | null")] config: &JsValue,
    ) -> Result<Self, JsValue> {
        Ok(Self {
            core: foreword_ordering::Orderer::new(values::config(config)?),
        })
    }

    /// Orders the documents of an OpenAI chat body, and records them as sent. A body that cannot be ordered is returned
    /// unchanged, with the reason in `skipped`.
    ///
    /// # Errors
    /// Throws if `body` is not a string, or `tenant` is neither a string nor absent.
    #[wasm_bindgen(unchecked_return_type = "Rewrite")]
    pub fn rewrite(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "string")] body: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "string | null")] tenant: &JsValue,
    ) -> Result<JsValue, JsValue> {
        let body = values::text("body", body)?;
        let tenant = values::tenant(tenant)?;
        let outcome = self.core.rewrite(Tenant::named(&tenant), body.as_bytes());
        let head = outcome.as_ref().ok().map(|rewrite| (&rewrite.head).into());
        let (sent, report, skipped) = match outcome {
            Ok(rewrite) => (rewrite.body, Some(rewrite.report), None),
            Err(skip) => (None, None, Some(skip)),
        };
        let sent = sent.map(String::from_utf8).transpose();
        let sent = sent.map_err(|_| refused("the rewritten body is not UTF-8"))?;
        values::plain(&Rewrite {
            changed: sent.is_some(),
            body: sent.as_deref().unwrap_or(&body),
            report,
            head,
            skipped: skipped.map(|skip| Skipped {
                reason: skip.reason(),
                message: skip.to_string(),
            }),
        })
    }

    /// Orders documents without a body, and records them as sent in that order after `options.before`.
    ///
    /// # Errors
    /// Throws if there are no documents or more than `documents.max`, or if a document has no text.
    #[wasm_bindgen(unchecked_return_type = "Ordered")]
    pub fn order(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "Document[]")] documents: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "OrderOptions | null")] options: &JsValue,
    ) -> Result<JsValue, JsValue> {
        let fields = ["id", "title", "text"].map(JsValue::from_str);
        let fields = js_sys::Array::from_iter(fields);
        let documents: Vec<Document> = values::objects("documents", documents, &fields)?;
        let options: Options = values::options("options", options)?;
        let list = documents.iter().map(Document::plain);
        let list: Vec<StandaloneDocument<'_>> = list.collect::<Result<_, _>>()?;
        let ordered = self.core.order(
            Tenant::named(&options.tenant),
            &options.model,
            &options.before,
            &list,
        );
        values::plain(&ordered.map_err(refused)?)
    }

    /// Returns the documents found in an OpenAI chat body, without duplicates. Records nothing.
    ///
    /// # Errors
    /// Throws if the body would be skipped; the message gives the reason.
    #[wasm_bindgen(js_name = documentsOf, unchecked_return_type = "ListedDocument[]")]
    pub fn documents_of(
        &self,
        #[wasm_bindgen(unchecked_param_type = "string")] body: &JsValue,
    ) -> Result<JsValue, JsValue> {
        let body = values::text("body", body)?;
        let groups = documents_of(body.as_bytes(), self.core.config()).map_err(refused)?;
        let groups = groups.into_iter().zip(0_u32..);
        let listed = groups.flat_map(|(group, at)| {
            let documents = group.documents.into_iter();
            documents.map(move |document| ListedDocument {
                group: at,
                label: document.label,
                fingerprint: hexadecimal::hash(document.fingerprint.0),
                tokens: document.tokens,
            })
        });
        values::plain(&listed.collect::<Vec<_>>())
    }

    /// Returns the knowledge tree of a tenant and model, the most recently used nodes first, parents before children.
    ///
    /// # Errors
    /// Throws if an option has the wrong type or is out of its range.
    #[wasm_bindgen(unchecked_return_type = "TreeNode[]")]
    pub fn tree(
        &self,
        #[wasm_bindgen(unchecked_optional_param_type = "TreeOptions | null")] options: &JsValue,
    ) -> Result<JsValue, JsValue> {
        let options: Options = values::options("options", options)?;
        let limit = options.limit.unwrap_or(1_000);
        if !(1..=MAX_NODES).contains(&limit) {
            return Err(refused(format_args!(
                "options.limit: {limit} is out of range, it must be 1 to {MAX_NODES}"
            )));
        }
        let nodes = (self.core).view(
            Tenant::named(&options.tenant),
            &options.model,
            limit as usize,
        );
        values::plain(&nodes.into_iter().map(TreeNode::from).collect::<Vec<_>>())
    }

    /// Clears all history, for instance after a restart of the engine.
    pub fn clear(&mut self) {
        self.core.clear();
    }

    /// Returns the number of nodes in all knowledge trees.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn nodes(&self) -> f64 {
        self.core.nodes() as f64
    }

    /// Returns the number of chat messages whose arrangement is recorded.
    #[wasm_bindgen(getter, js_name = rememberedMessages)]
    #[must_use]
    pub fn remembered_messages(&self) -> f64 {
        self.core.remembered().messages as f64
    }
}

/// Most nodes that a tree can have (`tree.max_nodes`).
const MAX_NODES: u32 = 10_000_000;

#[derive(Serialize)]
struct Rewrite<'a> {
    body: &'a str,
    changed: bool,
    report: Option<Report>,
    head: Option<crate::head::Head>,
    skipped: Option<Skipped>,
}

#[derive(Serialize)]
struct Skipped {
    reason: &'static str,
    message: String,
}

/// A document from the caller. Other fields, such as a score, are dropped before parsing.
#[derive(Default)]
struct Document {
    id: Option<String>,
    title: Option<String>,
    text: Option<String>,
}

object!(impl<'de> Document { id, title, text });

impl Document {
    fn plain(&self) -> Result<StandaloneDocument<'_>, JsValue> {
        let text = self.text.as_deref();
        Ok(StandaloneDocument {
            id: self.id.as_deref().unwrap_or_default(),
            title: self.title.as_deref().unwrap_or_default(),
            text: text.ok_or_else(|| refused_argument("documents", "missing field `text`"))?,
        })
    }
}

/// The options of `order` and of `tree`; each ignores those of the other.
#[derive(Default)]
struct Options {
    before: String,
    tenant: String,
    model: String,
    limit: Option<u32>,
}

object!(impl<'de> Options { before, tenant, model, limit });

#[derive(Serialize)]
struct ListedDocument {
    group: u32,
    label: String,
    fingerprint: String,
    tokens: u32,
}

#[derive(Serialize)]
struct TreeNode {
    parent: Option<u32>,
    scope: Option<String>,
    fingerprint: Option<String>,
    tokens: u32,
}

impl From<ViewedNode> for TreeNode {
    fn from(node: ViewedNode) -> Self {
        let (scope, fingerprint) = match node.edge {
            ViewedEdge::Scope(scope) => (Some(hexadecimal::hash(scope.0)), None),
            ViewedEdge::Document(Fingerprint(document)) => {
                (None, Some(hexadecimal::hash(document)))
            }
        };
        Self {
            parent: node.parent,
            scope,
            fingerprint,
            tokens: node.tokens,
        }
    }
}
