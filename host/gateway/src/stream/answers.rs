//! Builds messages to the gateway, with a function for each kind.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::ProcessingMode;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::{
    BodySendMode, HeaderSendMode,
};
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ImmediateResponse,
    ProcessingResponse, StreamedBodyResponse, TrailersResponse,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};

use foreword_filter::DESTINATION_HEADER;

use crate::pool::subset::DESTINATION_NAMESPACE;
use crate::proxy::Reply;

/// The part of an HTTP exchange to which a message belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Response,
}

/// Header changes: the new value by name; `None` removes the header.
pub(super) type Changes = BTreeMap<String, Option<String>>;

/// Returns the message that forwards headers with `changes`.
pub(super) fn headers(side: Side, changes: Changes) -> ProcessingResponse {
    let answer = HeadersResponse {
        response: Some(CommonResponse {
            header_mutation: mutation(changes),
            ..CommonResponse::default()
        }),
    };
    of(match side {
        Side::Request => Response::RequestHeaders(answer),
        Side::Response => Response::ResponseHeaders(answer),
    })
}

/// Returns the message that forwards a body or a piece of it: `new`, or the original if it is `None`.
pub(super) fn body(side: Side, changes: Changes, new: Option<Vec<u8>>) -> ProcessingResponse {
    of_body(side, changes, new.map(Mutation::Body))
}

/// Returns the message with a piece of a body that is streamed in both directions.
pub(super) fn piece(side: Side, body: Vec<u8>, end_of_stream: bool) -> ProcessingResponse {
    let piece = StreamedBodyResponse {
        body,
        end_of_stream,
        ..StreamedBodyResponse::default()
    };
    of_body(
        side,
        Changes::new(),
        Some(Mutation::StreamedResponse(piece)),
    )
}

/// Returns the message that forwards trailers.
pub(super) fn trailers(side: Side) -> ProcessingResponse {
    let answer = TrailersResponse::default();
    of(match side {
        Side::Request => Response::RequestTrailers(answer),
        Side::Response => Response::ResponseTrailers(answer),
    })
}

/// Returns the message that answers the client with `reply`, which ends the request.
pub(super) fn immediate(reply: Reply) -> ProcessingResponse {
    let headers = reply.headers.into_iter();
    let headers = headers.map(|(name, value)| (name, Some(value))).collect();
    of(Response::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus {
            code: reply.status.into(),
        }),
        headers: mutation(headers),
        body: reply.body,
        grpc_status: None,
        details: DETAILS.to_owned(),
    }))
}

/// Returns the mode in which the gateway sends no more bodies. Gateways apply it only with `allow_mode_override`, and
/// never to bodies that are streamed in both directions.
pub(super) fn without_bodies(wants_response_headers: bool) -> ProcessingMode {
    let response_headers = match wants_response_headers {
        true => HeaderSendMode::Send,
        false => HeaderSendMode::Skip,
    };
    ProcessingMode {
        request_header_mode: HeaderSendMode::Send.into(),
        response_header_mode: response_headers.into(),
        request_body_mode: BodySendMode::None.into(),
        response_body_mode: BodySendMode::None.into(),
        request_trailer_mode: HeaderSendMode::Skip.into(),
        response_trailer_mode: HeaderSendMode::Skip.into(),
    }
}

/// Adds texts, by name, to a message's dynamic metadata under `namespace`.
pub(super) fn add_metadata(
    answer: &mut ProcessingResponse,
    namespace: &str,
    fields: Vec<(String, String)>,
) {
    let value = |kind| Value { kind: Some(kind) };
    let fields = fields.into_iter();
    let fields = fields.map(|(name, text)| (name, value(Kind::StringValue(text))));
    let fields = fields.collect();
    let inner = value(Kind::StructValue(Struct { fields }));
    let metadata = answer.dynamic_metadata.get_or_insert_default();
    metadata.fields.insert(namespace.to_owned(), inner);
}

/// Adds the request's destinations to a message's metadata. Makes the gateway choose the route again, which may depend
/// on the destination header.
pub(super) fn direct(answer: &mut ProcessingResponse, destinations: &str) {
    let fields = vec![(DESTINATION_HEADER.to_owned(), destinations.to_owned())];
    add_metadata(answer, DESTINATION_NAMESPACE, fields);
    let common = match &mut answer.response {
        Some(Response::RequestHeaders(answer)) => answer.response.as_mut(),
        Some(Response::RequestBody(answer)) => answer.response.as_mut(),
        _ => None,
    };
    if let Some(common) = common {
        common.clear_route_cache = true;
    }
}

fn of(response: Response) -> ProcessingResponse {
    ProcessingResponse {
        response: Some(response),
        ..ProcessingResponse::default()
    }
}

fn of_body(side: Side, changes: Changes, new: Option<Mutation>) -> ProcessingResponse {
    let answer = BodyResponse {
        response: Some(CommonResponse {
            header_mutation: mutation(changes),
            body_mutation: new.map(|new| BodyMutation {
                mutation: Some(new),
            }),
            ..CommonResponse::default()
        }),
    };
    of(match side {
        Side::Request => Response::RequestBody(answer),
        Side::Response => Response::ResponseBody(answer),
    })
}

fn mutation(changes: Changes) -> Option<HeaderMutation> {
    let mut mutation = HeaderMutation::default();
    for (name, value) in changes {
        match value {
            Some(value) => mutation.set_headers.push(HeaderValueOption {
                header: Some(HeaderValue {
                    key: name,
                    raw_value: value.into_bytes(),
                    ..HeaderValue::default()
                }),
                append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
                ..HeaderValueOption::default()
            }),
            None => mutation.remove_headers.push(name),
        }
    }
    (!mutation.set_headers.is_empty() || !mutation.remove_headers.is_empty()).then_some(mutation)
}

/// Response-code details of the filter's own responses, as in the dynamic module.
const DETAILS: &str = "foreword";
