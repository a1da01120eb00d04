//! The served model: its name, its way from text to tokens, and the engine that runs it.
//!
//! Here a checked request meets what the model alone can judge: whether the messages fit its chat template and whether
//! prompt and answer fit its positions. What an answer looks like over HTTP is not known here.

use crate::failure::Failure;
use crate::request::{Chat, Completion, Options, Prompt};
use anyhow::Context;
use foreword_engine::backend::cpu::{CpuBackend, CpuConfig};
use foreword_engine::backend::{Backend, TokenId};
use foreword_engine::engine::{Engine, EngineConfig, Generation, Request};
use foreword_engine::models::ModelConfig;
use foreword_engine::text::{ChatTemplate, Tokenizer};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A loaded model.
pub struct Model {
    name: String,
    created_s: u64,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// Tokens that end an answer.
    eos_tokens: Vec<TokenId>,
    vocabulary: u32,
    max_positions: u32,
    engine: Engine,
}

impl Model {
    /// Loads the checkpoint in `folder` and starts an engine on the CPU. Slow: it reads the weights.
    ///
    /// # Errors
    /// When a file of the checkpoint is missing, malformed or not supported; the chain names file and reason.
    pub fn load(
        folder: &Path,
        name: String,
        cpu: &CpuConfig,
        engine: EngineConfig,
    ) -> anyhow::Result<Self> {
        let context = || format!("cannot load the model in {}", folder.display());
        let page_bytes = CpuBackend::page_bytes(folder, cpu.page_tokens).with_context(context)?;
        tracing::info!(
            pages = cpu.pages,
            page_tokens = cpu.page_tokens,
            pool_mib = (page_bytes.saturating_mul(u64::from(cpu.pages))) >> 20,
            "loading"
        );
        let backend = CpuBackend::load(folder, cpu).with_context(context)?;
        let factory = {
            let (folder, cpu) = (folder.to_owned(), cpu.clone());
            move || match CpuBackend::load(&folder, &cpu) {
                Ok(backend) => Ok(Box::new(backend) as Box<dyn Backend>),
                Err(error) => Err(error.to_string()),
            }
        };
        Self::with_engine(folder, name, Box::new(backend), |backend| {
            Engine::guarded(backend, Box::new(factory), engine)
        })
    }

    /// Reads everything but the weights from `folder` and starts an engine on `backend`.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn on_backend(
        folder: &Path,
        name: String,
        backend: Box<dyn Backend>,
        engine: EngineConfig,
    ) -> anyhow::Result<Self> {
        Self::with_engine(folder, name, backend, |backend| {
            Engine::start(backend, engine)
        })
    }

    fn with_engine(
        folder: &Path,
        name: String,
        backend: Box<dyn Backend>,
        start: impl FnOnce(Box<dyn Backend>) -> Engine,
    ) -> anyhow::Result<Self> {
        let context = || format!("cannot load the model in {}", folder.display());
        let tokenizer = Tokenizer::load(folder).with_context(context)?;
        let template = ChatTemplate::load(folder).with_context(context)?;
        let eos_tokens = ModelConfig::load(folder).with_context(context)?.eos_tokens;
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            name,
            created_s: created.as_secs(),
            tokenizer,
            template,
            eos_tokens,
            vocabulary: backend.vocabulary(),
            max_positions: backend.max_positions(),
            engine: start(backend),
        })
    }

    /// The name under which it is served.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When it was loaded, in seconds since 1970.
    pub fn created_s(&self) -> u64 {
        self.created_s
    }

    /// Tokens that prompt and answer may have together.
    pub fn max_positions(&self) -> u32 {
        self.max_positions
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine's request for a chat. Costs what rendering and tokenising cost: not for an async worker.
    ///
    /// # Errors
    /// When the chat does not fit the model.
    pub fn chat_request(&self, chat: &Chat) -> Result<Request, Failure> {
        let Some(template) = &self.template else {
            return Err(Failure::invalid(
                "messages",
                "this model has no chat template; use /v1/completions",
            ));
        };
        let prompt = template
            .render(&chat.messages, chat.tools.as_ref(), chat.documents.as_ref())
            .map_err(|error| Failure::invalid("messages", error.to_string()))?;
        // The template has written the special tokens that open a prompt.
        let prompt = self
            .tokenizer
            .encode(&prompt, false)
            .map_err(Failure::internal)?;
        self.request(prompt, "messages", &chat.options, None)
    }

    /// The engine's request for a text completion. Costs as [`Model::chat_request`].
    ///
    /// # Errors
    /// When the prompt does not fit the model.
    pub fn completion_request(&self, completion: &Completion) -> Result<Request, Failure> {
        let prompt = match &completion.prompt {
            Prompt::Text(text) => self
                .tokenizer
                .encode(text, true)
                .map_err(Failure::internal)?,
            Prompt::Tokens(tokens) => tokens.clone(),
        };
        if let Some(index) = prompt.iter().position(|token| *token >= self.vocabulary) {
            let (token, limit) = (prompt[index], self.vocabulary);
            let message = format!("prompt[{index}] must be a token below {limit}, got {token}");
            return Err(Failure::invalid("prompt", message));
        }
        self.request(
            prompt,
            "prompt",
            &completion.options,
            Some(COMPLETION_TOKENS),
        )
    }

    /// `default`: the length of an answer for which none was asked; `None`: as long as it gets.
    fn request(
        &self,
        prompt: Vec<TokenId>,
        field: &'static str,
        options: &Options,
        default: Option<u32>,
    ) -> Result<Request, Failure> {
        if prompt.is_empty() {
            return Err(Failure::invalid(
                field,
                format!("{field} has no tokens; at least one is needed"),
            ));
        }
        let length = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let room = self.max_positions.saturating_sub(length);
        let asked = options
            .max_tokens
            .unwrap_or_else(|| default.unwrap_or(room).min(room).max(1));
        if asked > room {
            return Err(Failure::ContextLength {
                prompt: length,
                needed: u64::from(length) + u64::from(asked),
                limit: self.max_positions,
            });
        }
        Ok(Request {
            prompt,
            max_tokens: asked,
            sampling: options.sampling.clone(),
            stop_tokens: if options.ignore_eos {
                Vec::new()
            } else {
                self.eos_tokens.clone()
            },
            cache_salt: options.cache_salt.clone(),
            tenant: options.cache_salt.as_str().into(),
            ..Request::default()
        })
    }

    /// Hands a request to the engine.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn submit(&self, request: Request) -> Result<Generation, Failure> {
        let max_tokens = request.max_tokens;
        self.engine
            .submit(request)
            .map_err(|error| Failure::from_submit(error, max_tokens))
    }
}

/// OpenAI's default for the length of a text completion.
const COMPLETION_TOKENS: u32 = 16;
