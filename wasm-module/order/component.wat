;; The component around the core module, for two routers: its types, and which core function is which export.
;;
;; `cargo xtask build` encodes this text and puts the compiled core module in the place of the empty one. The component
;; imports nothing. Types that stand in an exported function must be exported too; their names here are our own, since
;; routers compare them by shape.
(component
  (core module $order)
  (core instance $core (instantiate $order))
  (alias core export $core "memory" (core memory $memory))
  (alias core export $core "cabi_realloc" (core func $realloc))
  (alias core export $core "smg-on-request" (core func $smg-on-request))
  (alias core export $core "smg-on-response" (core func $smg-on-response))
  (alias core export $core "vllm-handle" (core func $vllm-handle))

  ;; smg:gateway, as of smg 1.13
  (type $smg-header-type (record (field "name" string) (field "value" string)))
  (export $smg-header "smg-header" (type $smg-header-type))
  (type $smg-request-type (record
    (field "method" string)
    (field "path" string)
    (field "query" string)
    (field "headers" (list $smg-header))
    (field "body" (list u8))
    (field "request-id" string)
    (field "now-epoch-ms" u64)))
  (export $smg-request "smg-request" (type $smg-request-type))
  (type $smg-response-type (record
    (field "status" u16)
    (field "headers" (list $smg-header))
    (field "body" (list u8))))
  (export $smg-response "smg-response" (type $smg-response-type))
  (type $smg-modify-type (record
    (field "status" (option u16))
    (field "headers-set" (list $smg-header))
    (field "headers-add" (list $smg-header))
    (field "headers-remove" (list string))
    (field "body-replace" (option (list u8)))))
  (export $smg-modify "smg-modify" (type $smg-modify-type))
  (type $smg-action-type (variant (case "continue") (case "reject" u16) (case "modify" $smg-modify)))
  (export $smg-action "smg-action" (type $smg-action-type))
  (type $smg-on-request-type (func (param "req" $smg-request) (result $smg-action)))
  (type $smg-on-response-type (func (param "resp" $smg-response) (result $smg-action)))
  (func $smg-on-request (type $smg-on-request-type)
    (canon lift (core func $smg-on-request) (memory $memory) (realloc $realloc)))
  (func $smg-on-response (type $smg-on-response-type)
    (canon lift (core func $smg-on-response) (memory $memory) (realloc $realloc)))
  (instance $smg-request-middleware (export "on-request" (func $smg-on-request)))
  (instance $smg-response-middleware (export "on-response" (func $smg-on-response)))
  (export "smg:gateway/middleware-on-request" (instance $smg-request-middleware))
  (export "smg:gateway/middleware-on-response" (instance $smg-response-middleware))

  ;; vllm:router-middleware 0.1.0, as of vllm-router 0.1.17
  (type $vllm-header-type (record (field "name" string) (field "value" (list u8))))
  (export $vllm-header "vllm-header" (type $vllm-header-type))
  (type $vllm-request-type (record
    (field "method" string)
    (field "path" string)
    (field "query" string)
    (field "headers" (list $vllm-header))
    (field "body" (list u8))
    (field "request-id" string)))
  (export $vllm-request "vllm-request" (type $vllm-request-type))
  (type $vllm-modify-type (record
    (field "headers-set" (list $vllm-header))
    (field "headers-add" (list $vllm-header))
    (field "headers-remove" (list string))
    (field "body-replace" (option (list u8)))))
  (export $vllm-modify "vllm-modify" (type $vllm-modify-type))
  (type $vllm-action-type (variant (case "continue") (case "reject" u16) (case "modify" $vllm-modify)))
  (export $vllm-action "vllm-action" (type $vllm-action-type))
  (type $vllm-handle-type (func (param "req" $vllm-request) (result $vllm-action)))
  (func $vllm-handle (type $vllm-handle-type)
    (canon lift (core func $vllm-handle) (memory $memory) (realloc $realloc)))
  (instance $vllm-middleware (export "handle" (func $vllm-handle)))
  (export "vllm:router-middleware/on-request@0.1.0" (instance $vllm-middleware))
)
