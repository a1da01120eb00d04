//! The gRPC service: admits streams, passes their messages to `stream` in order, and ends them with a status.
//!
//! Each stream is one future, polled by its connection's task, without a channel or another task between a message and
//! its answer. When a gateway cancels a stream, its state is dropped.
//!
//! | end | the gateway |
//! | --- | --- |
//! | OK | forwards without the filter, which has nothing left to do |
//! | RESOURCE_EXHAUSTED: too many streams or bytes | as for every error: 500 or forwarding, by `failure_mode_allow` |
//! | FAILED_PRECONDITION: a body mode in which nothing can be ordered | the same |
//! | OUT_OF_RANGE: a message longer than the limit | the same |

use std::pin::Pin;
use std::sync::Arc;

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures_util::stream::{Stream, unfold};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tonic::{Request, Response, Status, Streaming};

use crate::calls::Answer;
use crate::processor::Processor;
use crate::stream::ProcessingStream;

/// Envoy's gRPC service `ExternalProcessor`: one stream for each HTTP request.
pub struct Service {
    processor: Arc<Processor>,
}

impl Service {
    /// Returns the gRPC service, with the processor's limit on message size.
    pub fn over(processor: Arc<Processor>) -> ExternalProcessorServer<Self> {
        let message_bytes = processor.bounds.message_bytes;
        ExternalProcessorServer::new(Self { processor })
            .max_decoding_message_size(message_bytes)
            .max_encoding_message_size(usize::MAX)
    }
}

#[tonic::async_trait]
impl ExternalProcessor for Service {
    type ProcessStream =
        Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send + 'static>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let metrics = &self.processor.metrics;
        let Some(place) = self.processor.admit() else {
            metrics.refused_streams.inc();
            return Err(Status::resource_exhausted("too many streams are open"));
        };
        metrics.streams.inc();
        metrics.open_streams.inc();
        let conversation = Conversation {
            messages: request.into_inner(),
            stream: ProcessingStream::new(Arc::clone(&self.processor)),
            calls: JoinSet::new(),
            processor: Arc::clone(&self.processor),
            has_failed: false,
            _place: place,
        };
        let answers = unfold(conversation, |mut conversation| async {
            let answer = conversation.next().await?;
            Some((answer, conversation))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// An open stream, with the calls whose results it waits for.
struct Conversation {
    messages: Streaming<ProcessingRequest>,
    stream: ProcessingStream,
    calls: JoinSet<Answer>,
    processor: Arc<Processor>,
    has_failed: bool,
    _place: OwnedSemaphorePermit,
}

impl Conversation {
    /// Returns the next message to the gateway, or the error that ends the stream; `None` when it ends normally.
    async fn next(&mut self) -> Option<Result<ProcessingResponse, Status>> {
        loop {
            if let Some(answer) = self.stream.next_answer() {
                return Some(Ok(answer));
            }
            if self.has_failed || self.stream.is_closed() {
                return None;
            }
            let resumed = self.stream.resumed();
            let result = tokio::select! {
                message = self.messages.message() => match message {
                    Ok(Some(message)) => self.stream.on_message(message),
                    Ok(None) => return None,
                    Err(status) => Err(status),
                },
                Some(Ok(answer)) = self.calls.join_next() => self.stream.on_answer(&answer),
                () = resumed => self.stream.on_resumed(),
            };
            for call in self.stream.take_calls() {
                let max_bytes = self.stream.max_answer_bytes();
                let answer = self.processor.clusters.make(call, max_bytes);
                self.calls.spawn(answer);
            }
            if let Err(status) = result {
                self.has_failed = true;
                // The gateway cancels a stream when its client leaves; that is no failure.
                if status.code() != tonic::Code::Cancelled {
                    self.processor.metrics.failed_streams.inc();
                    tracing::warn!(code = ?status.code(), "a stream failed: {}", status.message());
                }
                return Some(Err(status));
            }
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.processor.metrics.open_streams.dec();
    }
}
