"""Where seglog's answers about permissions are not a real Kafka's, and why. Nothing else may differ."""

from typing import Final, NamedTuple

OPEN: Final = frozenset(
    [
        "Metadata",
        "DescribeTopicPartitions",
        "CreateTopics",
        "CreatePartitions",
        "DeleteTopics",
        "Produce",
        "Fetch",
        "ListOffsets",
        "OffsetForLeaderEpoch",
        "DeleteRecords",
        "InitProducerId",
        "DescribeProducers",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "TxnOffsetCommit",
        "EndTxn",
        "WriteTxnMarkers",
        "DescribeTransactions",
        "ListTransactions",
        "JoinGroup",
        "SyncGroup",
        "Heartbeat",
        "LeaveGroup",
        "ConsumerGroupHeartbeat",
        "ShareGroupHeartbeat",
        "OffsetCommit",
        "OffsetFetch",
        "OffsetDelete",
        "DescribeGroups",
        "ListGroups",
        "DeleteGroups",
        "ConsumerGroupDescribe",
        "ShareGroupDescribe",
        "FindCoordinator",
        "ShareFetch",
        "ShareAcknowledge",
        "DescribeShareGroupOffsets",
        "AlterShareGroupOffsets",
        "DeleteShareGroupOffsets",
        "DescribeConfigs",
        "AlterConfigs",
        "IncrementalAlterConfigs",
        "ListConfigResources",
        "DescribeCluster",
        "DescribeQuorum",
        "UpdateFeatures",
        "DescribeLogDirs",
        "AlterReplicaLogDirs",
        "ElectLeaders",
        "AlterPartitionReassignments",
        "ListPartitionReassignments",
        "DescribeAcls",
        "CreateAcls",
        "DeleteAcls",
        "DescribeClientQuotas",
        "AlterClientQuotas",
        "DescribeUserScramCredentials",
        "AlterUserScramCredentials",
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "DescribeDelegationToken",
    ]
)
"""Apis that do not ask for permission yet."""


class Difference(NamedTuple):
    """Why a part of the answers to some requests is another: those whose titles begin so, in json."""

    why: str
    titles: str
    kafka: str
    ours: str


DIFFERENCES: Final[tuple[Difference, ...]] = (
    Difference(
        "topics that are created are there when Metadata is answered, in Kafka a moment later",
        "Metadata v",
        '{"error_code": 3, "name": "auto',
        '{"name": "auto',
    ),
)
