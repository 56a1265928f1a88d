"""Options for APIs that many call: rules and limits as data, after what their vendors publish.

A preset is what a user could write into the configuration. What is written there counts; rules that are
written there are asked before those of the preset. The pages were read on 2026-11-23, unless it says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

PRESETS: dict[str, dict[str, Any]] = {
    # https://docs.slack.dev/apis/web-api/rate-limits: one message per second and channel, 429 with Retry-After
    # https://docs.slack.dev/reference/methods/chat.postMessage (errors): read were those that all methods have
    "slack": {
        "calls_per_second": 1,
        "answers": [
            {"when": "body.ok = false AND body.error IN ('ratelimited', 'rate_limited')", "then": "pause"},
            {
                "when": "body.ok = false AND body.error IN ('internal_error', 'fatal_error', 'service_unavailable', "
                "'request_timeout', 'team_added_to_org')",
                "then": "retry",
                "reason": "{body.error}",
            },
            {
                "when": "body.ok = false AND body.error IN ('not_authed', 'invalid_auth', 'account_inactive', "
                "'token_revoked', 'token_expired', 'no_permission', 'missing_scope', 'org_login_required', "
                "'ekm_access_denied', 'access_denied', 'accesslimited', 'not_allowed_token_type', "
                "'enterprise_is_restricted', 'team_access_not_granted', 'two_factor_setup_required', "
                "'deprecated_endpoint', 'method_deprecated')",
                "then": "fail",
                "reason": "{body.error}",
            },
            {"when": "body.ok = false", "then": "dead", "reason": "{body.error}"},
        ],
    },
    # https://www.elastic.co/docs/api/doc/elasticsearch/operation/operation-bulk (items, NDJSON), in its version for 7.x
    # https://www.elastic.co/docs/deploy-manage/production-guidance/optimize-performance/indexing-speed (sizes, 429)
    # https://www.elastic.co/docs/troubleshoot/elasticsearch/rejected-requests (es_rejected_execution_exception)
    "elasticsearch_bulk": {
        "rows_per_call": 1000,
        "bytes_per_call": 5 << 20,
        "body": {"form": "ndjson", "action": {"create": {}}},
        "results": {"path": "items", "status": "*.status", "reason": "*.error.reason"},
        "answers": [
            {"when": "item.create.status = 409", "then": "deliver"},  # its id is there: it arrived before
            {
                "when": "item.*.error.type IN ('es_rejected_execution_exception', 'circuit_breaking_exception')",
                "then": "pause",
                "reason": "{item.*.error.reason}",
            },
            {
                "when": "item.*.error.type IN ('cluster_block_exception', 'unavailable_shards_exception')",
                "then": "retry",
                "reason": "{item.*.error.reason}",
            },
        ],
    },
    # https://spec.graphql.org/October2021/#sec-Response-Format (errors, message, extensions)
    # https://www.apollographql.com/docs/apollo-server/data/errors (codes; also in the package @apollo/server 5.4.0)
    # https://shopify.dev/docs/apps/build/apis/graphql-admin/rate-limits (by cost of a query, per app and store): read
    # in part; that a 200 says THROTTLED was read in answers that its users have published
    "graphql": {
        "answers": [
            {
                "when": "array_contains(body.errors.extensions.code, 'THROTTLED')",
                "then": "pause",
                "reason": "{body.errors[0].message}",
            },
            {"when": "array_contains(body.errors.message, 'Throttled')", "then": "pause"},
            {
                "when": "array_contains(body.errors.extensions.code, 'INTERNAL_SERVER_ERROR')",
                "then": "retry",
                "reason": "{body.errors[0].message}",
            },
            {
                "when": "array_contains(body.errors.extensions.code, 'UNAUTHENTICATED') "
                "OR array_contains(body.errors.extensions.code, 'GRAPHQL_PARSE_FAILED') "
                "OR array_contains(body.errors.extensions.code, 'GRAPHQL_VALIDATION_FAILED') "
                "OR array_contains(body.errors.extensions.code, 'OPERATION_RESOLUTION_FAILURE')",
                "then": "fail",
                "reason": "{body.errors[0].message}",
            },
            {"when": "status < 300 AND size(body.errors) > 0", "then": "dead", "reason": "{body.errors[0].message}"},
        ],
    },
    # https://help.splunk.com/en/splunk-enterprise/get-data-in/collect-http-event-data/troubleshoot-http-event-collector
    # (codes): its table was not read; read were those of Splunk's library cloudfwd, to 14, and of the app SplunkAdmins,
    # to 22. What else there is has a status that says it. Events before one that is refused are kept: moby/moby#35862
    # https://docs.splunk.com/Documentation/SplunkCloud/latest/Service/SplunkCloudservice (1 MB of content): not read
    "splunk_hec": {
        "rows_per_call": 500,
        "bytes_per_call": 1_000_000,
        "body": {"form": "ndjson", "content_type": "application/json"},
        "answers": [
            {"when": "body.code = 9", "then": "pause", "reason": "{body.text}"},
            {"when": "body.code IN (1, 2, 3, 4, 10, 11, 14, 16, 21, 22)", "then": "fail", "reason": "{body.text}"},
            {"when": "body.code IN (5, 6, 7, 12, 13, 15)", "then": "split", "reason": "{body.text}"},
        ],
    },
    # https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md, "Operational
    # considerations": statuses, timeouts of 15 to 30 seconds (at 03f5f8c)
    "standard_webhooks": {
        "timeouts": {"read": "20 s", "total": "30 s"},
        "answers": [
            {"when": "status = 410", "then": "fail", "reason": "410: the receiver wants no more webhooks"},
            {"when": "status IN (429, 502, 504)", "then": "pause"},
            {"when": "status >= 400", "then": "retry"},
        ],
    },
}


SIGNATURES: dict[str, dict[str, Any]] = {
    # https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries (and the values to test with)
    "github": {
        "signed": "{body}",
        "header": "X-Hub-Signature-256",
        "value": "sha256={signature}",
        "timestamp_header": None,
    },
    # https://docs.stripe.com/webhooks#verify-manually: not read; the code of Stripe's library for Ruby was
    # (Webhook::Signature.compute_signature), and a test verifies it with that for Python, 16.1.0
    "stripe": {"header": "Stripe-Signature", "value": "t={timestamp},v1={signature}", "timestamp_header": None},
    # https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md, "Signature scheme"
    "standard_webhooks": {
        "key_encoding": "base64",
        "signed": "{id}.{timestamp}.{body}",
        "encoding": "base64",
        "header": "webhook-signature",
        "value": "v1,{signature}",
        "timestamp_header": "webhook-timestamp",
        "id_header": "webhook-id",
    },
}
"""Options of `auth: {hmac: ...}` as receivers of webhooks expect them."""


def expand_preset(written: Any, presets: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the options that are written, with those of their preset where they say nothing."""
    name = written.get("preset") if isinstance(written, dict) else None
    if not isinstance(name, str) or name not in presets:
        return written
    options = dict(written)
    for key, preset_value in presets[name].items():
        value = written.get(key, preset_value)
        # Rules come one after the other, options of options singly; all else is as it is written.
        if key == "answers" and key in written and isinstance(value, (list, tuple)):
            value = [*value, *preset_value]
        elif isinstance(preset_value, dict) and isinstance(value, dict):
            value = {**preset_value, **value}
        options[key] = value
    return options
