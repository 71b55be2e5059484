"""Native requests and replies as msgspec structs, and their encoding to msgpack maps and back.

A request travels as ``{"id", "api", "v", ...fields}``, its reply as ``{"id", ...fields}`` or
``{"id", "error": {...}}``; record batches and long listings travel in the frame's payload. The broker refuses unknown
request fields (a new field means ``v`` + 1 of that api); clients ignore unknown reply fields. Results and errors are
per partition: one bad partition never fails the others. A field that is None is left out.

The page MESSAGES.md has each of them; ``scripts/message_tables.py`` makes it.
"""
# ruff: noqa: I001 - a name is exported by an alias of the same name; they stand by module

from seglog_protocol.messages.append import (
    Ack as Ack,
    AppendPartition as AppendPartition,
    AppendReply as AppendReply,
    AppendRequest as AppendRequest,
    AppendResult as AppendResult,
    FlushPartition as FlushPartition,
    FlushReply as FlushReply,
    FlushRequest as FlushRequest,
    FlushResult as FlushResult,
    InitProducerReply as InitProducerReply,
    InitProducerRequest as InitProducerRequest,
)
from seglog_protocol.messages.base import (
    INT64_MAX as INT64_MAX,
    ITEMS_MAX as ITEMS_MAX,
    NATIVE_PORT as NATIVE_PORT,
    PROTOCOL_NAME as PROTOCOL_NAME,
    Message as Message,
    Request as Request,
)
from seglog_protocol.messages.samples import (
    DescribeBrokerReply as DescribeBrokerReply,
    DescribeBrokerRequest as DescribeBrokerRequest,
    DescribedListener as DescribedListener,
)
from seglog_protocol.messages.explain import (
    ExplainedLookup as ExplainedLookup,
    ExplainedProbe as ExplainedProbe,
    ExplainedSegment as ExplainedSegment,
    ExplainReply as ExplainReply,
    ExplainRequest as ExplainRequest,
    ExplainSegmentsReply as ExplainSegmentsReply,
    ExplainSegmentsRequest as ExplainSegmentsRequest,
    PartitionCompaction as PartitionCompaction,
    SegmentCompaction as SegmentCompaction,
)
from seglog_protocol.messages.fetch import (
    CancelReply as CancelReply,
    CancelRequest as CancelRequest,
    FetchPartition as FetchPartition,
    FetchReply as FetchReply,
    FetchRequest as FetchRequest,
    FetchResult as FetchResult,
    Gap as Gap,
    name_hole as name_hole,
)
from seglog_protocol.messages.groups import (
    CommitOffset as CommitOffset,
    CommitOffsetResult as CommitOffsetResult,
    CommitOffsetsReply as CommitOffsetsReply,
    CommitOffsetsRequest as CommitOffsetsRequest,
    CommittedOffset as CommittedOffset,
    CommittedOffsetsReply as CommittedOffsetsReply,
    CommittedOffsetsRequest as CommittedOffsetsRequest,
    DeletedGroup as DeletedGroup,
    DeletedOffset as DeletedOffset,
    DeleteGroupsReply as DeleteGroupsReply,
    DeleteGroupsRequest as DeleteGroupsRequest,
    DeleteOffsetsReply as DeleteOffsetsReply,
    DeleteOffsetsRequest as DeleteOffsetsRequest,
    DescribedMember as DescribedMember,
    DescribedPartitions as DescribedPartitions,
    DescribeGroupReply as DescribeGroupReply,
    DescribeGroupRequest as DescribeGroupRequest,
    GroupHeartbeatReply as GroupHeartbeatReply,
    GroupHeartbeatRequest as GroupHeartbeatRequest,
    GroupPartition as GroupPartition,
    JoinGroupMember as JoinGroupMember,
    JoinGroupReply as JoinGroupReply,
    JoinGroupRequest as JoinGroupRequest,
    JoinProtocol as JoinProtocol,
    LeaveGroupReply as LeaveGroupReply,
    LeaveGroupRequest as LeaveGroupRequest,
    LeaveGroupResult as LeaveGroupResult,
    LeavingGroupMember as LeavingGroupMember,
    ListedGroup as ListedGroup,
    ListGroupsReply as ListGroupsReply,
    ListGroupsRequest as ListGroupsRequest,
    SyncGroupAssignment as SyncGroupAssignment,
    SyncGroupReply as SyncGroupReply,
    SyncGroupRequest as SyncGroupRequest,
)
from seglog_protocol.messages.headers import (
    MessageT as MessageT,
    OpenedRequest as OpenedRequest,
    decode_descriptions as decode_descriptions,
    decode_reply as decode_reply,
    decode_request as decode_request,
    decode_samples as decode_samples,
    decode_segments as decode_segments,
    open_request as open_request,
    pack_fields as pack_fields,
    pack_long_fields as pack_long_fields,
    pack_page as pack_page,
    pack_reply as pack_reply,
    pack_reply_header as pack_reply_header,
    pack_reply_into as pack_reply_into,
    pack_request as pack_request,
    page_of as page_of,
    reply_header as reply_header,
    reply_id_of as reply_id_of,
    request_header as request_header,
    request_id_of as request_id_of,
)
from seglog_protocol.messages.hello import (
    API_VERSIONS as API_VERSIONS,
    REQUESTS as REQUESTS,
    HelloReply as HelloReply,
    HelloRequest as HelloRequest,
    MetricsReply as MetricsReply,
    MetricsRequest as MetricsRequest,
)
from seglog_protocol.messages.offsets import (
    LagPartition as LagPartition,
    LagReply as LagReply,
    LagRequest as LagRequest,
    LagResult as LagResult,
    OffsetsPartition as OffsetsPartition,
    OffsetsReply as OffsetsReply,
    OffsetsRequest as OffsetsRequest,
    OffsetsResult as OffsetsResult,
    TruncatePartition as TruncatePartition,
    TruncateReply as TruncateReply,
    TruncateRequest as TruncateRequest,
    TruncateResult as TruncateResult,
)
from seglog_protocol.messages.samples import (
    MetricBuckets as MetricBuckets,
    MetricFamily as MetricFamily,
    MetricSample as MetricSample,
    SamplesReply as SamplesReply,
    SamplesRequest as SamplesRequest,
)
from seglog_protocol.messages.security import (
    TOKEN_BYTES_MAX as TOKEN_BYTES_MAX,
    AlteredUser as AlteredUser,
    AlterUsersReply as AlterUsersReply,
    AlterUsersRequest as AlterUsersRequest,
    AuthenticateReply as AuthenticateReply,
    AuthenticateRequest as AuthenticateRequest,
    UserCredential as UserCredential,
    UserDeletion as UserDeletion,
    UserDescription as UserDescription,
    UsersReply as UsersReply,
    UsersRequest as UsersRequest,
    UserUpsertion as UserUpsertion,
)
from seglog_protocol.messages.topics import (
    AlterTopicReply as AlterTopicReply,
    AlterTopicRequest as AlterTopicRequest,
    ConfigEntry as ConfigEntry,
    ConfigValue as ConfigValue,
    CreateTopicReply as CreateTopicReply,
    CreateTopicRequest as CreateTopicRequest,
    DeleteTopicReply as DeleteTopicReply,
    DeleteTopicRequest as DeleteTopicRequest,
    TopicDescription as TopicDescription,
    TopicsReply as TopicsReply,
    TopicsRequest as TopicsRequest,
)
from seglog_protocol.messages.transactions import (
    AbortTransactionReply as AbortTransactionReply,
    AbortTransactionRequest as AbortTransactionRequest,
    EndTransactionReply as EndTransactionReply,
    EndTransactionRequest as EndTransactionRequest,
    ExtendTransactionReply as ExtendTransactionReply,
    ExtendTransactionRequest as ExtendTransactionRequest,
    TransactionDescription as TransactionDescription,
    TransactionPartition as TransactionPartition,
    TransactionsReply as TransactionsReply,
    TransactionsRequest as TransactionsRequest,
)
