"""The broker keys: Kafka's names, types, defaults and ranges, and the few that are ours, which begin with ``seglog.``.

Broker keys that only set the default of a topic key (``log.retention.hours``) are not attributes here: they are the
``synonyms`` of the topic keys, and their values are in ``topic_defaults``.
"""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from seglog_broker.config.keys import (
    DEFAULT_ORIGIN,
    Described,
    Key,
    Origin,
    Synonym,
    key,
    keys_of,
    reloadable,
    settable,
    without_effect,
)
from seglog_broker.config.listener_keys import ListenerSetting
from seglog_broker.config.topic_config import NO_REPLICAS, SEGMENT_BYTES_MIN_KAFKA, TOPIC_KEYS, TopicConfig
from seglog_broker.config.topic_overrides import apply_overrides, validate_topic_config
from seglog_broker.config.values import (
    LONG_MAX,
    Address,
    AddressCounts,
    AuthorizerClass,
    Boolean,
    Directory,
    Double,
    Int,
    Kind,
    Listeners,
    Long,
    Mechanisms,
    Principals,
    ProtocolMap,
    Raw,
    Secret,
    Short,
    StoreType,
    Text,
    Words,
)

MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
"""Mechanisms of SASL, the strongest of those with passwords first."""

AUTHORIZERS: Final = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
"""Kafka's classes of rules (ACLs); the second one is that of Kafka with ZooKeeper."""

TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")

NO_CLUSTER: Final = "one node has no cluster"
NO_CONTROLLER: Final = "one node has no controllers"
ONE_LOOP: Final = "one event loop serves all requests"
NO_GSSAPI: Final = "there is no GSSAPI (Kerberos)"
NO_JAVA: Final = "TLS is OpenSSL's, not Java's"


def _least(default: int, kind: Kind, name: str) -> int:
    return reloadable(default, kind, f"Least {name} that a group may be given.", "Lower it where groups need less.")


def _most(default: int, kind: Kind, name: str) -> int:
    return reloadable(default, kind, f"Largest {name} that a group may be given.", "Raise it where groups need more.")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The complete configuration of the daemon. Attributes are the keys' names with ``_`` for ``.``, in their units.

    Made by ``load_config``, which checks it; nothing is checked on construction.
    """

    seglog_listen: str = key(
        "127.0.0.1:9192",
        Address(has_protocol=True),
        "Address of the native protocol; a security protocol may stand before it, as in SASL_SSL://0.0.0.0:9192.",
        "Use SASL_SSL://0.0.0.0:9192 to be reached from other machines.",
    )
    seglog_http_listen: str = key(
        "127.0.0.1:9193",
        Address(optional=True, has_protocol=True, example="127.0.0.1:9193"),
        "Address of health and metrics over HTTP (/livez, /readyz, /healthz, /metrics); empty for none. "
        "PLAINTEXT:// or SSL:// (HTTPS) may stand before it.",
        "Use 0.0.0.0:9193 to be asked from other machines, with seglog.http.token.file; change the port for a "
        "second broker of this machine.",
    )
    seglog_http_token_file: str = reloadable(
        "",
        Text(),
        "File with the token, in one line of 16 characters or more (openssl rand -hex 32 makes one), that /metrics "
        "and /healthz want (Authorization: Bearer ...). Without it they are shown where seglog.http.listen is a "
        "loopback address, to those with a certificate (ssl.client.auth), and where seglog.open.to.everyone is "
        "true. /livez and /readyz answer anybody. Read again on SIGHUP.",
        "Together with an address in seglog.http.listen that other machines reach.",
    )
    listeners: tuple[str, ...] = key(
        ("PLAINTEXT://127.0.0.1:9092",),
        Listeners(),
        "Addresses for Kafka's clients, such as PLAINTEXT://127.0.0.1:9092; empty for none. Each has a name, as in "
        "INTERNAL://:9092,EXTERNAL://:9094.",
        "Use SASL_SSL://0.0.0.0:9092 to be reached from other machines.",
    )
    advertised_listeners: tuple[str, ...] = reloadable(
        (),
        Listeners(is_advertised=True),
        "The address that Kafka's clients of a listener are told to use, under the name of that listener; of equal "
        "names one for each, in their order, or one for all. A listener without any names the address that the "
        "client has reached.",
        "Where clients reach the broker by another address than its own: through a mapped port or a proxy.",
    )
    listener_security_protocol_map: tuple[str, ...] = key(
        ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"),
        ProtocolMap(),
        "What is spoken on a listener of some name: PLAINTEXT, SSL (TLS), SASL_PLAINTEXT or SASL_SSL (accounts).",
        "Together with names of your own in listeners: INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL.",
    )
    seglog_open_to_everyone: bool = key(
        False,
        Boolean(),
        "Whether listeners without authentication may be reached from other machines: whoever reaches them may "
        "read, write and delete everything. Without it such a listener is opened on a loopback address alone, and "
        "so is one that takes tokens without a signature.",
        "Set it to true only where the network lets in nobody else.",
    )
    super_users: tuple[str, ...] = reloadable(
        (),
        Principals(),
        "Who administers: topics, configurations and accounts, and deletes groups; User:NAME, with semicolons "
        "between several. All others produce, consume and commit, in every topic and group; with "
        "authorizer.class.name they do what rules allow. Without that, everyone administers where no listener "
        "authenticates and it is empty.",
        "As soon as there are accounts: User:admin. User:ANONYMOUS is whoever comes without authentication.",
    )
    authorizer_class_name: str = reloadable(
        "",
        AuthorizerClass(AUTHORIZERS),
        "Whether rules (ACLs) are in force: org.apache.kafka.metadata.authorizer.StandardAuthorizer (or Kafka 3's "
        "kafka.security.authorizer.AclAuthorizer, which is the same here). Those of super.users may do all, others "
        "what a rule allows and none denies. Empty: rules may be written, and are not in force.",
        "When users of one broker are to be kept apart: name administrators in super.users and write rules first.",
    )
    allow_everyone_if_no_acl_found: bool = reloadable(
        False,
        Boolean(),
        "Whether everyone may do everything with a resource that no rule is for, while rules are in force.",
        "To protect a few topics, and leave all others open.",
    )
    sasl_enabled_mechanisms: tuple[str, ...] = key(
        ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"),
        Mechanisms(MECHANISMS),
        "How clients of SASL_PLAINTEXT and SASL_SSL listeners may prove who they are. PLAIN is offered over TLS "
        "and on loopback addresses alone. There is no GSSAPI.",
        "Add OAUTHBEARER for tokens of an identity provider.",
    )
    seglog_sasl_plain_cleartext: bool = key(
        False,
        Boolean(),
        "Whether PLAIN is offered on SASL_PLAINTEXT listeners of any address: passwords cross the network as they are.",
        "Only where something else encrypts, such as a tunnel.",
    )
    sasl_server_max_receive_size: int = key(
        524_288,
        Int(1),
        "Largest frame in bytes before a client is authenticated; a larger one closes the connection.",
        "Raise it for very large tokens.",
    )
    connections_max_reauth_ms: int = reloadable(
        0,
        Long(1000, also=0),
        "Milliseconds after which a client has to authenticate again, a second or more; 0 for never, or at the end "
        "of its token.",
        "Set it so that a changed password counts after that time also where a connection stays open.",
    )
    connection_failed_authentication_delay_ms: int = reloadable(
        100,
        Int(0),
        "Milliseconds before a failed login is answered.",
        "Raise it to make guessing slower.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str = key(
        "",
        Text(),
        "Where the keys are that sign tokens, as JWKS: https://... or file:///....",
        "Together with OAUTHBEARER in sasl.enabled.mechanisms.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = key(
        3_600_000,
        Long(1),
        "Milliseconds after which the keys are read again.",
        "Lower it where keys change often; one that is not known is looked up at once.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = key(
        (), Words(), "A token must be for one of these (aud).", "Always: your broker's name there."
    )
    sasl_oauthbearer_allow_unverified_audience: bool = key(
        False, Boolean(), "Whether the broker starts without sasl.oauthbearer.expected.audience.", "In tests alone."
    )
    sasl_oauthbearer_expected_issuer: str = key(
        "", Text(), "Who must have issued a token (iss).", "Always: the identity provider's name."
    )
    sasl_oauthbearer_allow_unverified_issuer: bool = key(
        False, Boolean(), "Whether the broker starts without sasl.oauthbearer.expected.issuer.", "In tests alone."
    )
    sasl_oauthbearer_scope_claim_name: str = key(
        "scope", Text(), "The claim that holds the scope of a token.", "Where it has another."
    )
    sasl_oauthbearer_sub_claim_name: str = key(
        "sub", Text(), "The claim that names the account.", "Where it is another, as preferred_username."
    )
    sasl_oauthbearer_clock_skew_seconds: int = key(
        30, Int(0), "Seconds by which the clocks of provider and broker may differ.", "Seldom."
    )
    seglog_sasl_oauthbearer_unsecured: bool = key(
        False,
        Boolean(),
        "Whether tokens without a signature are taken: anyone can make one for any account. Listeners that take "
        "them are opened on loopback addresses alone, unless seglog.open.to.everyone.",
        "In tests alone.",
    )
    ssl_keystore_type: str = key(
        "PEM",
        StoreType(choices=("PEM",)),
        "Format of the broker's certificate and key. Java's formats are converted by openssl pkcs12.",
        "Never.",
    )
    ssl_keystore_location: str = reloadable(
        "",
        Text(),
        "File with the broker's private key and its chain of certificates, as PEM. Read again on SIGHUP.",
        "Together with SSL or SASL_SSL in listeners; unless ssl.keystore.key has it.",
    )
    ssl_keystore_certificate_chain: str = reloadable(
        "",
        Secret(),
        "The broker's certificate, as PEM, and those above it.",
        "Where the configuration is to hold it, with ssl.keystore.key.",
    )
    ssl_keystore_key: str = reloadable(
        "",
        Secret(),
        "The private key of ssl.keystore.certificate.chain, as PEM (PKCS#8).",
        "With ssl.keystore.certificate.chain.",
    )
    ssl_key_password: str = reloadable("", Secret(), "The password of the private key.", "Where the key is encrypted.")
    ssl_truststore_type: str = key(
        "PEM", StoreType(choices=("PEM",)), "Format of the certificates that sign those of clients.", "Never."
    )
    ssl_truststore_location: str = reloadable(
        "",
        Text(),
        "File with the certificates that sign those of clients, as PEM. Read again on SIGHUP.",
        "Together with ssl.client.auth.",
    )
    ssl_truststore_certificates: str = reloadable(
        "",
        Secret(),
        "The certificates that sign those of clients, as PEM.",
        "Where the configuration is to hold them.",
    )
    ssl_client_auth: Literal["none", "requested", "required"] = reloadable(
        "none",
        Text(choices=("none", "requested", "required")),
        "Whether clients show a certificate of their own. On an SSL listener with required it is who they are.",
        "Set required for accounts by certificates.",
    )
    ssl_enabled_protocols: tuple[str, ...] = reloadable(
        ("TLSv1.2", "TLSv1.3"),
        Words(TLS_VERSIONS),
        "Versions of TLS that are spoken.",
        "Set TLSv1.3 alone where no client is older.",
    )
    ssl_cipher_suites: tuple[str, ...] = reloadable(
        (),
        Words(),
        "Cipher suites of TLS 1.2 by OpenSSL's names; empty for OpenSSL's own choice. Those of TLS 1.3 are fixed.",
        "Where a rule of your organisation names them.",
    )
    ssl_principal_mapping_rules: str = reloadable(
        "DEFAULT",
        Text(),
        "How the subject of a client's certificate becomes a name: RULE:pattern/replacement/[LU], with commas "
        "between several, the first that matches counts; DEFAULT is the whole subject.",
        "Where names are to be short: RULE:^CN=([^,]+).*$/$1/,DEFAULT.",
    )
    node_id: int = key(
        1,
        Int(0),
        "The number of this broker, which Kafka's clients see as that of the leader of every partition.",
        "Where programs name the broker by its number, as in kafka-configs.sh --entity-name. A meta.properties "
        "that is there keeps its number.",
        "node.id",
        "broker.id",
    )
    seglog_kafka_acks_all: Literal["disk", "os"] = reloadable(
        "disk",
        Text(choices=("disk", "os")),
        "What acks=all of Kafka's clients waits for: records on the disk, or handed to the operating system.",
        "Set os where a power cut may take the latest records, for as many more acks a second as without fsync.",
    )
    seglog_kafka_replication_factor_lenient: bool = reloadable(
        False,
        Boolean(),
        "Whether a topic may be created with a replication factor above 1, which then is 1.",
        "For programs that ask for three replicas and cannot be told otherwise.",
    )
    log_dir: str = key(
        "./data",
        Directory(),
        "The one directory that holds everything; log.dirs is another name for it.",
        "Always, except for a trial.",
        "log.dirs",
        "log.dir",
    )
    num_partitions: int = reloadable(
        1,
        Int(1),
        "Partitions of a new topic that is created without a number.",
        "Raise it when several consumers are to share the work on most topics.",
    )
    delete_topic_enable: bool = reloadable(
        True,
        Boolean(),
        "Whether topics can be deleted at all.",
        "Set it to false to protect all topics.",
    )
    auto_create_topics_enable: bool = reloadable(
        True,
        Boolean(),
        "Whether producing to a topic that does not exist creates it, with num.partitions. Readers of seglog never "
        "do; a Kafka client that asks for its metadata does, as with Kafka.",
        "Set it to false to refuse mistyped names.",
    )
    socket_request_max_bytes: int = key(
        104_857_600,
        Int(1),
        "Largest request in bytes; a larger one is refused before it is read.",
        "Lower it to bound the memory one connection can take.",
    )
    socket_send_buffer_bytes: int = key(
        262_144,
        Int(-1),
        "Bytes asked for as the system's send buffer of each connection; -1 for the system's own choice. Kafka "
        "asks for 102400. Linux gives twice as many, and no more than its net.core.wmem_max.",
        "Set it to -1 for consumers that are far away: a connection sends no more than the buffer in a round trip. "
        "For those that are near, a larger one is slower: its bytes leave the processor's cache.",
    )
    socket_receive_buffer_bytes: int = key(
        -1,
        Int(-1),
        "Bytes asked for as the system's receive buffer of each connection; -1 for the system's own choice. Kafka "
        "asks for 102400.",
        "Seldom; the system's grows as it is needed.",
    )
    fetch_max_bytes: int = reloadable(
        57_671_680,
        Int(1024),
        "Most bytes of batches in one answer to a fetch; one batch is sent even when it is larger.",
        "Seldom; clients ask for less.",
    )
    seglog_fetch_max_wait_ms_max: int = reloadable(
        300_000,
        Int(0),
        "Most milliseconds a fetch may wait for new records; a longer max_wait_ms is reduced to this.",
        "Lower it when a proxy or firewall between client and broker closes quiet connections sooner.",
    )
    seglog_connections_max: int = key(
        10_000,
        Int(1),
        "Most connections at a time.",
        "Together with the limit on open files of the process, which must be higher.",
    )
    max_connections: int = reloadable(
        2_147_483_647,
        Int(1),
        "Most connections at a time, but those for HTTP; while there are so many, no other one is accepted. "
        "seglog.connections.max is the limit above it, at which clients are refused.",
        "For one listener (listener.name.NAME.max.connections), so that it leaves room for others.",
    )
    max_connections_per_ip: int = reloadable(
        2_147_483_647,
        Int(0),
        "Most connections at a time of one address; further ones are closed.",
        "Lower it where single machines open too many.",
    )
    max_connections_per_ip_overrides: tuple[str, ...] = reloadable(
        (),
        AddressCounts(),
        "The same for single addresses: ADDRESS:NUMBER, with commas between several.",
        "Together with max.connections.per.ip.",
    )
    max_connection_creation_rate: int = reloadable(
        2_147_483_647,
        Int(1),
        "Most new connections a second; where they come faster, they are accepted later.",
        "Where very many clients connect at once, and logins take too much of the processor.",
    )
    quota_window_num: int = key(
        11,
        Int(1),
        "Windows of time that quotas of clients look back at: their bytes and processor time, and new connections.",
        "Raise it to let a client use more at once after a pause.",
    )
    quota_window_size_seconds: int = key(
        1,
        Int(1),
        "Seconds of each of these windows; a client with a quota of processor time waits no longer than one of them.",
        "Together with quota.window.num.",
    )
    controller_quota_window_num: int = key(
        11,
        Int(1),
        "Windows of time that quotas of changes to topics look back at.",
        "Raise it to let a client change more topics at once after a pause.",
    )
    controller_quota_window_size_seconds: int = key(
        1, Int(1), "Seconds of each of these windows.", "Together with controller.quota.window.num."
    )
    seglog_partitions_max: int = reloadable(
        100_000,
        Int(1),
        "Most partitions of all topics together; further ones are refused with POLICY_VIOLATION.",
        "A partition takes some 20 KB of memory, also one without records.",
    )
    seglog_handles_max: int = key(
        2_048,
        Int(1),
        "Most segment files and index maps kept open at a time: no more than 512, or an eighth of the open files "
        "that the process is granted if that is more.",
        "Raise it above the number of partitions that are written at a time, and when readers often change between "
        "more segments than that.",
    )
    seglog_request_memory_max: int = key(
        268_435_456,
        Long(1_048_576),
        "Bytes of memory for large requests (over 64 KiB) of all connections together, taken as their bytes "
        "arrive. When it is used up, a request is not read further until others are done; while requests wait, "
        "one that arrives at less than 1 MiB a second is cut. A request larger than half of it is refused.",
        "Raise it when many producers send large requests at a time; lower it on a small machine.",
    )
    connections_max_idle_ms: int = key(
        600_000,
        Long(-1),
        "Milliseconds after which a connection is closed that sends nothing and waits for nothing; -1 for never.",
        "Lower it where clients leave many idle connections open; seglog's clients reconnect when they need to.",
    )
    seglog_connections_max_stall_ms: int = key(
        60_000,
        Long(1),
        "Milliseconds after which a connection is cut that reads nothing of an answer, or sends nothing more of a "
        "request that it has begun.",
        "Raise it for consumers that stop reading for a long time while they work.",
    )
    seglog_disk_free_soft_bytes: int = reloadable(
        -1,
        Long(-1),
        "Free bytes of the disk below which the broker warns, and above which it accepts records again after the "
        "disk was full; -1 for a tenth of the disk, at most 512 MiB.",
        "Raise it to be warned earlier.",
    )
    seglog_disk_free_hard_bytes: int = reloadable(
        -1,
        Long(-1),
        "Free bytes of the disk below which appends and new topics are refused, while reading and deleting "
        "continue; -1 for a twentieth of the disk, at most 256 MiB.",
        "Raise it where other programs write to the same disk.",
    )
    seglog_disk_ballast_bytes: int = key(
        -1,
        Long(-1),
        "Size of a reserve file that is deleted when the disk is full, so that there is room for orderly "
        "deletions; 0 for none, -1 for a hundredth of the disk, at most 16 MiB. Beside it, eight empty files "
        "keep inodes.",
        "Seldom.",
    )
    seglog_missing_partitions: str = key(
        "refuse",
        Text(("refuse", "empty")),
        "What a start does with partitions that had records and whose directories are missing. refuse: a log "
        "directory written by Kafka is not opened, and a partition known to seglog is offline. empty: such "
        "partitions start without records.",
        "Choose empty for one start, when it is certain that the records are not in another directory or broker.",
    )
    seglog_acls_not_enforced: bool = key(
        False,
        Boolean(),
        "Whether ACLs in the metadata log of a Kafka that had the log directory are kept without being in force.",
        "For the first start on a Kafka's directory: its ACLs are looked at before authorizer.class.name is set.",
    )
    seglog_log_format: str = reloadable(
        "console",
        Text(("console", "json")),
        "Format of the daemon's own log: console for people, json for one JSON object per line.",
        "Choose json where programs collect it.",
    )
    seglog_log_level: str = reloadable(
        "info",
        Text(("debug", "info", "warning", "error")),
        "The lowest level that the daemon writes to its own log.",
        "Choose debug to follow single requests.",
    )
    log_initial_task_delay_ms: int = key(
        30_000,
        Long(0),
        "Milliseconds between the start and the first run of the background tasks.",
        "Seldom.",
    )
    log_flush_offset_checkpoint_interval_ms: int = reloadable(
        60_000,
        Int(0),
        "Milliseconds between two checkpoints: closed segments are flushed to the disk, and a start after a crash "
        "reads only the segments closed since, and the active segment of each partition that was written to.",
        "Seldom: smaller segments (log.segment.bytes) make a start after a crash faster.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = without_effect(
        60_000,
        Int(0),
        "log start offsets are written with the other checkpoints, and at once when records are deleted",
    )
    log_flush_scheduler_interval_ms: int = reloadable(
        LONG_MAX,
        Long(0),
        "Another default for flush.ms; the broker itself schedules the flushes.",
        "Together with flush.ms.",
    )
    log_retention_check_interval_ms: int = reloadable(
        300_000,
        Long(1),
        "Milliseconds between two searches for segments to delete.",
        "Lower it when the retention of a topic is shorter.",
    )
    num_recovery_threads_per_data_dir: int = key(
        2,
        Int(1),
        "Processes that recover partitions in parallel after a crash, while other partitions are served.",
        "Raise it on fast disks with many partitions and cores to spare.",
    )
    log_dir_failure_timeout_ms: int = without_effect(30_000, Long(1), NO_CLUSTER)
    cordoned_log_dirs: tuple[str, ...] = settable((), Words(), "there is exactly one log directory", holds=())
    replica_high_watermark_checkpoint_interval_ms: int = without_effect(5000, Long(), NO_REPLICAS)
    log_cleaner_enable: bool = key(
        True,
        Boolean(),
        "Whether compacted topics are compacted.",
        "Never; Kafka 5 has it always on. Without it compacted topics grow for ever.",
    )
    log_cleaner_threads: int = key(
        1,
        Int(0),
        "Partitions that are compacted at a time, each in a process of its own; 0 switches compaction off.",
        "Raise it when compaction falls behind.",
    )
    log_cleaner_dedupe_buffer_size: int = reloadable(
        134_217_728,
        Long(1_048_577),
        "Bytes of memory for the keys of a round of compaction, for all cleaners; a key takes its length plus 64.",
        "Raise it for topics with very many keys.",
    )
    log_cleaner_io_buffer_load_factor: float = reloadable(
        0.9,
        Double(0.001, 1),
        "Share of the memory for keys that a round may fill before it ends. Kafka takes any number, and cannot "
        "compact with 0.",
        "Seldom.",
    )
    log_cleaner_io_buffer_size: int = settable(
        524_288, Int(0), "pieces of a fixed size are read, and batches are never split"
    )
    log_cleaner_io_max_bytes_per_second: float = reloadable(
        sys.float_info.max,
        Double(1),
        "Most bytes per second that compaction reads and writes, all cleaners and topics together. Kafka takes any "
        "number, and cannot compact with 0.",
        "Lower it when compaction disturbs producers and consumers.",
    )
    log_cleaner_backoff_ms: int = reloadable(
        15_000,
        Long(0),
        "Milliseconds the cleaner sleeps when there is nothing to do.",
        "Seldom.",
    )
    seglog_scrub_bytes_per_second: int = reloadable(
        4_194_304,
        Int(0),
        "Most bytes per second that are read in the background to find damage before a consumer does; 0: none.",
        "Raise it when a pass over all closed segments takes too long.",
    )
    seglog_scrub_interval_ms: int = reloadable(
        604_800_000,
        Long(1),
        "Least milliseconds from the start of one pass over all closed segments to the start of the next.",
        "Lower it where disks are not trusted.",
    )
    seglog_backup_to: str = key(
        "",
        Text(),
        "Where the broker is backed up to all the time: a directory of another disk, or an address such as "
        "s3://BUCKET/PATH; empty for no such backup.",
        "Where the loss of the disk is to cost seconds, not the time since the last seglogd backup.",
    )
    seglog_backup_lag_ms: int = key(
        10_000,
        Long(500),
        "Milliseconds that the backup may be behind; a larger lag is a problem that ping names, and raises an alert. "
        "The state is sent after at most half of it.",
        "Lower it to lose less, at the price of more requests to the object store.",
    )
    seglog_backup_keep_ms: int = key(
        604_800_000,
        Long(0),
        "Milliseconds for which each moment can be restored; what only older moments need is removed.",
        "Raise it where mistakes are found late; deleted and compacted records are kept for as long.",
    )
    seglog_backup_key_file: str = key(
        "",
        Text(),
        "File with the key that encrypts the backup, as seglogd backup-key makes it; empty for none.",
        "Where others can read the place. Keep a copy of the key elsewhere: without it there is no backup.",
    )
    seglog_backup_bytes_per_second: int = key(
        0,
        Long(0),
        "Most bytes per second that are sent to the place; 0 for no limit.",
        "Where the network is shared. Below what is appended per second the backup falls behind for ever.",
    )
    seglog_backup_lease_ms: int = key(
        0,
        Long(3000, 600_000, also=0),
        "Milliseconds for which the broker may acknowledge after it has renewed its lease in the place, so that a "
        "standby can take over; 0: no lease.",
        "Together with seglogd --standby. While the place cannot be reached, nothing is acknowledged.",
    )
    seglog_metrics_topics_max: int = reloadable(
        200,
        Int(0),
        "Most topics that have metrics of their own, the largest first; others are counted together.",
        "Raise it where dashboards are to show more topics: each partition has six samples.",
    )
    seglog_metrics_groups_max: int = reloadable(
        200,
        Int(0),
        "Most groups that have metrics of their own, the largest lag first; others are counted together.",
        "Raise it where dashboards are to show more groups: each committed offset has four samples.",
    )
    producer_id_expiration_ms: int = reloadable(
        86_400_000,
        Int(1),
        "Milliseconds without a batch after which an idempotent producer is forgotten.",
        "Raise it when producers may be disconnected for longer and then retry.",
    )
    producer_id_expiration_check_interval_ms: int = reloadable(
        600_000,
        Int(1),
        "Milliseconds between two searches for producers to forget.",
        "Seldom.",
    )
    group_initial_rebalance_delay_ms: int = reloadable(
        300,
        Int(0),
        "Milliseconds for which a new group waits for more members before it assigns partitions; Kafka waits 3000.",
        "Raise it where many consumers start together and each rebalance is expensive; 0 for tests.",
    )
    group_min_session_timeout_ms: int = reloadable(
        6_000,
        Int(1),
        "Shortest session timeout in milliseconds that a member of a group may ask for.",
        "Lower it for tests that want to see a member die soon.",
    )
    group_max_session_timeout_ms: int = reloadable(
        1_800_000,
        Int(1),
        "Longest session timeout in milliseconds that a member of a group may ask for.",
        "Lower it so that partitions of dead members are not held for long.",
    )
    group_max_size: int = reloadable(
        2_147_483_647,
        Int(1),
        "Most members of a group.",
        "Lower it to protect the broker from programs that start without end.",
    )
    group_consumer_session_timeout_ms: int = reloadable(
        45_000,
        Int(1),
        "Milliseconds without a heartbeat after which a member of the consumer protocol (KIP-848) is dead.",
        "Lower it to find dead members sooner.",
    )
    group_consumer_heartbeat_interval_ms: int = reloadable(
        5_000,
        Int(1),
        "Milliseconds between two heartbeats of a member of the consumer protocol.",
        "Lower it for faster rebalances, at the price of more requests.",
    )
    group_consumer_min_session_timeout_ms: int = _least(45_000, Int(1), "consumer.session.timeout.ms")
    group_consumer_max_session_timeout_ms: int = _most(60_000, Int(1), "consumer.session.timeout.ms")
    group_consumer_min_heartbeat_interval_ms: int = _least(5_000, Int(1), "consumer.heartbeat.interval.ms")
    group_consumer_max_heartbeat_interval_ms: int = _most(15_000, Int(1), "consumer.heartbeat.interval.ms")
    group_consumer_max_size: int = reloadable(
        2_147_483_647,
        Int(1),
        "Most members of a group of the consumer protocol.",
        "As group.max.size.",
    )
    group_consumer_assignors: tuple[str, ...] = reloadable(
        ("uniform", "range"),
        Words(("uniform", "range")),
        "Assignors that the broker has for groups of the consumer protocol; the first one is the default.",
        "Put range first where partitions of equal number belong together.",
    )
    group_consumer_migration_policy: Literal["disabled", "upgrade", "downgrade", "bidirectional"] = reloadable(
        "bidirectional",
        Text(choices=("disabled", "upgrade", "downgrade", "bidirectional")),
        "Whether a group with members may change from the classic to the consumer protocol (upgrade), and back.",
        "Set disabled to keep programs of both kinds apart.",
    )
    group_share_session_timeout_ms: int = reloadable(
        45_000,
        Int(1),
        "Milliseconds without a heartbeat after which a member of a share group (KIP-932) is dead.",
        "Lower it, and its limits, to find dead members sooner.",
    )
    group_share_min_session_timeout_ms: int = _least(45_000, Int(1), "share.session.timeout.ms")
    group_share_max_session_timeout_ms: int = _most(60_000, Int(1), "share.session.timeout.ms")
    group_share_heartbeat_interval_ms: int = reloadable(
        5_000,
        Int(1),
        "Milliseconds between two heartbeats of a member of a share group.",
        "Lower it for members that learn of new topics sooner, at the price of more requests.",
    )
    group_share_min_heartbeat_interval_ms: int = _least(5_000, Int(1), "share.heartbeat.interval.ms")
    group_share_max_heartbeat_interval_ms: int = _most(15_000, Int(1), "share.heartbeat.interval.ms")
    group_share_assignment_interval_ms: int = reloadable(
        1_000,
        Int(0),
        "Milliseconds at least between two assignments of partitions to the members of a share group.",
        "Lower it for members that get partitions sooner.",
    )
    group_share_min_assignment_interval_ms: int = _least(0, Int(0), "share.assignment.interval.ms")
    group_share_max_assignment_interval_ms: int = _most(15_000, Int(0), "share.assignment.interval.ms")
    group_share_max_size: int = reloadable(
        200,
        Int(1, 1_000),
        "Most members of a share group.",
        "Raise it where more programs share the work.",
    )
    group_share_assignors: tuple[str, ...] = without_effect(
        ("simple",), Words(("simple",)), "there is one assignor of share groups", holds=("simple",)
    )
    group_share_record_lock_duration_ms: int = reloadable(
        30_000,
        Int(1_000, 3_600_000),
        "Milliseconds for which a record is kept for the member of a share group that has acquired it.",
        "Raise it where a record takes longer; the next member gets it afterwards.",
    )
    group_share_min_record_lock_duration_ms: int = _least(15_000, Int(1_000, 30_000), "share.record.lock.duration.ms")
    group_share_max_record_lock_duration_ms: int = _most(
        60_000, Int(30_000, 3_600_000), "share.record.lock.duration.ms"
    )
    group_share_delivery_count_limit: int = reloadable(
        5,
        Int(2, 10),
        "Most deliveries of a record to a share group.",
        "Lower it where a record that fails once fails again.",
    )
    group_share_min_delivery_count_limit: int = _least(2, Int(2, 5), "share.delivery.count.limit")
    group_share_max_delivery_count_limit: int = _most(10, Int(5, 25), "share.delivery.count.limit")
    group_share_partition_max_record_locks: int = reloadable(
        2_000,
        Int(100, 10_000),
        "Most records of a partition that are in flight in a share group.",
        "Raise it where so many records are worked on at once that members wait.",
    )
    group_share_min_partition_max_record_locks: int = _least(100, Int(100, 2_000), "share.partition.max.record.locks")
    group_share_max_partition_max_record_locks: int = _most(
        4_000, Int(2_000, 10_000), "share.partition.max.record.locks"
    )
    group_share_max_share_sessions: int = reloadable(
        2_000,
        Int(1),
        "Most members of share groups that fetch.",
        "Raise it for very many members.",
    )
    errors_deadletterqueue_topic_name_prefix: str = reloadable(
        "dlq.",
        Text(),
        "How the names of topics for dead letters begin; empty for any name.",
        "Seldom.",
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = reloadable(
        False,
        Boolean(),
        "Whether the topic for dead letters of a share group is made when the first of them is written.",
        "Set it to true where whoever sets errors.deadletterqueue.topic.name may make topics.",
    )
    seglog_share_dead_letter_retry_ms: int = reloadable(
        86_400_000,
        Long(0),
        "Milliseconds for which a dead letter that cannot be written is tried again. Its record is one in flight "
        "meanwhile; then it is archived without a dead letter, with a line in the log. With 0 that is at the first "
        "failure, as Kafka does for most of them.",
        "Lower it where a queue must go on although its dead letters cannot be kept.",
    )
    seglog_share_memory_bytes: int = reloadable(
        134_217_728,
        Long(1_048_576),
        "Most bytes for the state of records of share groups; from nine tenths on new partitions are refused, and then "
        "records that are not in flight yet. What is there stays, also after a start.",
        "Raise it for very many share groups and partitions.",
    )
    share_coordinator_state_topic_num_partitions: int = key(
        1,
        Int(1),
        "Partitions of the topic that holds the state of share groups, when it is made; Kafka makes 50.",
        "Seldom: more of them are of use to a cluster, which may later take over the directory.",
    )
    share_coordinator_state_topic_segment_bytes: int = key(
        16_777_216,
        Int(SEGMENT_BYTES_MIN_KAFKA),
        "Segment size of the topic that holds the state of share groups, when it is made; Kafka takes 104857600.",
        "Seldom.",
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = reloadable(
        500,
        Int(0, 500),
        "Changes of the state of a partition in a share group that are written before all of it is written again.",
        "Lower it for faster starts, at the price of more bytes written.",
    )
    share_coordinator_state_topic_prune_interval_ms: int = reloadable(
        300_000,
        Int(1),
        "Milliseconds between two looks for what is of no use any more in the topic with the state of share groups.",
        "Lower it for faster starts where very much is acknowledged.",
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = reloadable(
        300_000,
        Int(1),
        "Milliseconds after which the state of a partition is written anew that nobody acknowledges in: it would keep "
        "all that was written behind it.",
        "Seldom.",
    )
    seglog_groups_memory_bytes: int = reloadable(
        134_217_728,
        Long(1_048_576),
        "Most bytes for the members of all groups: what they say, read and are assigned; from nine tenths on new "
        "ones are refused, while those that are there stay, also after a start.",
        "Raise it when the log says groups_refused: then new members get an error and try again.",
    )
    seglog_offsets_memory_bytes: int = reloadable(
        536_870_912,
        Long(1_048_576),
        "Most bytes for committed offsets, some 400 each and their texts; from nine tenths on new ones are "
        "refused, while those that are there stay, also after a start.",
        "Raise it for millions of partitions with commits, or delete groups that are not used any more.",
    )
    offset_metadata_max_bytes: int = reloadable(
        4_096,
        Int(0),
        "Most bytes of the text that may be committed with an offset.",
        "Raise it for programs that keep their state there.",
    )
    offsets_retention_minutes: int = reloadable(
        10_080,
        Int(1),
        "Minutes for which the committed offsets of a group are kept that has no members.",
        "Raise it for groups that run seldom.",
    )
    offsets_retention_check_interval_ms: int = reloadable(
        600_000,
        Long(1),
        "Milliseconds between two searches for committed offsets to forget.",
        "Seldom.",
    )
    offsets_topic_num_partitions: int = key(
        1,
        Int(1),
        "Partitions of the topic that holds committed offsets, when it is made; Kafka makes 50.",
        "Seldom: more of them are of use to a cluster, which may later take over the directory.",
    )
    offsets_topic_segment_bytes: int = key(
        16_777_216,
        Int(SEGMENT_BYTES_MIN_KAFKA),
        "Segment size of the topic that holds committed offsets, when it is made; Kafka takes 104857600.",
        "Raise it where much is committed; a start reads at least one segment that is not compacted yet.",
    )
    transaction_max_timeout_ms: int = reloadable(
        900_000,
        Int(1),
        "Most milliseconds that a producer may ask for as the timeout of its transactions; one that is open for "
        "longer than its timeout is aborted.",
        "Raise it for producers that commit seldom: until then, consumers at read_committed wait.",
    )
    transactional_id_expiration_ms: int = reloadable(
        604_800_000,
        Int(1),
        "Milliseconds after which a transactional id is forgotten that no producer has used.",
        "Seldom: a producer that comes back later gets a new producer id, and nothing it sent counts twice.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = reloadable(
        3_600_000,
        Int(1),
        "Milliseconds between two searches for transactional ids to forget.",
        "Seldom.",
    )
    seglog_transactions_memory_bytes: int = reloadable(
        67_108_864,
        Long(1_048_576),
        "Most bytes for transactional ids and the partitions of their transactions; from nine tenths on those that "
        "were idle longest are forgotten before they expire.",
        "Raise it when the log says transactions_refused: then producers get an error and try again.",
    )
    transaction_state_log_num_partitions: int = key(
        1,
        Int(1),
        "Partitions of the topic that holds the state of transactions, when it is made; Kafka makes 50.",
        "Seldom: more of them are of use to a cluster, which may later take over the directory.",
    )
    transaction_state_log_segment_bytes: int = key(
        16_777_216,
        Int(SEGMENT_BYTES_MIN_KAFKA),
        "Segment size of the topic that holds the state of transactions, when it is made; Kafka takes 104857600.",
        "Raise it for very many transactions; a start reads at least one segment that is not compacted yet.",
    )
    transaction_partition_verification_enable: bool = settable(
        True, Boolean(), "a partition takes batches of transactions that it is part of, and no others"
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = without_effect(
        10_000, Int(1), "each transaction is aborted at its own timeout"
    )
    transaction_state_log_replication_factor: int = without_effect(3, Short(1), NO_REPLICAS, holds=1)
    transaction_state_log_min_isr: int = without_effect(2, Int(1), NO_REPLICAS, holds=1)
    offsets_topic_replication_factor: int = without_effect(3, Short(1), NO_REPLICAS, holds=1)
    default_replication_factor: int = without_effect(1, Int(1), NO_REPLICAS, holds=1)
    num_replica_fetchers: int = settable(1, Int(), NO_REPLICAS)
    replica_lag_time_max_ms: int = without_effect(30_000, Long(), NO_REPLICAS)
    auto_leader_rebalance_enable: bool = without_effect(True, Boolean(), NO_REPLICAS)
    share_coordinator_state_topic_replication_factor: int = without_effect(3, Short(1), NO_REPLICAS, holds=1)
    share_coordinator_state_topic_min_isr: int = without_effect(2, Short(1), NO_REPLICAS, holds=1)
    share_coordinator_threads: int = without_effect(1, Int(1), ONE_LOOP)
    process_roles: tuple[str, ...] = without_effect((), Words(("broker", "controller")), NO_CONTROLLER)
    controller_listener_names: tuple[str, ...] = without_effect(
        (), Words(), "one node has no controllers, and their listeners are not opened", is_kept=True
    )
    controller_quorum_voters: tuple[str, ...] = without_effect((), Words(), NO_CONTROLLER)
    controller_quorum_bootstrap_servers: tuple[str, ...] = without_effect((), Words(), NO_CONTROLLER)
    controller_quorum_election_timeout_ms: int = without_effect(1_000, Int(), NO_CONTROLLER)
    controller_quorum_fetch_timeout_ms: int = without_effect(2_000, Int(), NO_CONTROLLER)
    inter_broker_listener_name: str = without_effect("", Text(), NO_CLUSTER)
    security_inter_broker_protocol: str = without_effect("PLAINTEXT", Text(), NO_CLUSTER)
    sasl_mechanism_inter_broker_protocol: str = settable("GSSAPI", Text(), NO_CLUSTER)
    sasl_mechanism_controller_protocol: str = without_effect("GSSAPI", Text(), NO_CONTROLLER)
    sasl_kerberos_service_name: str = settable("", Text(), NO_GSSAPI)
    sasl_kerberos_kinit_cmd: str = settable("/usr/bin/kinit", Text(), NO_GSSAPI)
    sasl_kerberos_min_time_before_relogin: int = settable(60_000, Long(), NO_GSSAPI)
    sasl_kerberos_principal_to_local_rules: tuple[str, ...] = settable(("DEFAULT",), Words(), NO_GSSAPI)
    sasl_kerberos_ticket_renew_jitter: float = settable(0.05, Double(), NO_GSSAPI)
    sasl_kerberos_ticket_renew_window_factor: float = settable(0.8, Double(), NO_GSSAPI)
    ssl_endpoint_identification_algorithm: str = settable(
        "https", Text(), "the broker connects to no other broker; clients check its name"
    )
    ssl_protocol: str = settable("TLSv1.3", Text(), "ssl.enabled.protocols alone says which versions are spoken")
    ssl_provider: str = settable("", Text(), NO_JAVA)
    ssl_secure_random_implementation: str = settable("", Text(), NO_JAVA)
    ssl_keymanager_algorithm: str = settable("SunX509", Text(), NO_JAVA)
    ssl_trustmanager_algorithm: str = settable("PKIX", Text(), NO_JAVA)
    ssl_allow_dn_changes: bool = without_effect(False, Boolean(), "a reload takes every certificate that its key fits")
    ssl_allow_san_changes: bool = without_effect(False, Boolean(), "a reload takes every certificate that its key fits")
    broker_rack: str = without_effect("", Text(), NO_CLUSTER)
    controlled_shutdown_enable: bool = without_effect(True, Boolean(), NO_CLUSTER)
    num_network_threads: int = settable(3, Int(1), ONE_LOOP)
    num_io_threads: int = settable(8, Int(1), ONE_LOOP)
    background_threads: int = settable(10, Int(1), ONE_LOOP)
    group_coordinator_threads: int = without_effect(4, Int(1), ONE_LOOP)
    queued_max_requests: int = without_effect(500, Int(1), "requests are bounded by their memory")
    socket_listen_backlog_size: int = without_effect(50, Int(1), "the system's own limit is asked for")
    topic_defaults: TopicConfig = field(default_factory=TopicConfig, kw_only=True)
    """The configuration of a topic without settings of its own."""
    listener_settings: tuple[ListenerSetting, ...] = field(default=(), kw_only=True)
    """What single listeners of Kafka's have in place of what holds for all."""
    origins: Mapping[str, Origin] = field(default_factory=dict, repr=False, compare=False, kw_only=True)
    """The origin of each value that is not a default, by broker key."""

    def topic_config(self, overrides: Mapping[str, Raw]) -> TopicConfig:
        """A topic's configuration: its own overrides, over the broker's defaults for topics, over Kafka's defaults.

        Raises InvalidConfigError for an unknown key or a value outside its range.
        """
        return apply_overrides(self.topic_defaults, overrides)

    def of_listener(self, name: str) -> "BrokerConfig":
        """The configuration as a listener has it; ``name`` is in capitals, and empty for those that are not Kafka's."""
        own = {setting.key.attribute: setting.value for setting in self.listener_settings if setting.listener == name}
        return dataclasses.replace(self, **own) if own else self  # type: ignore[arg-type] # each value is of its key's kind

    def validate_topic_config(self, overrides: Mapping[str, Raw]) -> tuple[dict[str, str], list[str]]:
        """``topic_overrides.validate_topic_config`` against the defaults of this broker."""
        return validate_topic_config(overrides, self.topic_defaults)

    def origin(self, name: str) -> Origin:
        """The origin of the value of a broker key, under any of its names. Raises KeyError for an unknown key."""
        if name in BROKER_NAMES:
            return self.origins.get(BROKER_NAMES[name].name, DEFAULT_ORIGIN)
        return self.topic_defaults.origin(TOPIC_DEFAULT_NAMES[name][0].name)

    def describe(self) -> list[Described]:
        """Every setting with its value and origin: the broker's own, then its defaults for topics.

        The latter are listed under their strongest broker name (``log.retention.ms``, whichever unit was used).
        """
        lines = [each.described(getattr(self, each.attribute), self.origin(each.name)) for each in BROKER_KEYS.values()]
        of_topics = ((line, TOPIC_KEYS[line.key].synonyms) for line in self.topic_defaults.describe())
        return lines + [line._replace(key=synonyms[0].name) for line, synonyms in of_topics if synonyms]


BROKER_KEYS: Final[Mapping[str, Key]] = keys_of(BrokerConfig, topic=False)
"""Every broker key that is not a topic default, by its name."""

BROKER_NAMES: Final[Mapping[str, Key]] = {synonym.name: key for key in BROKER_KEYS.values() for synonym in key.names}
"""Every name under which such a key may be written."""

TOPIC_DEFAULT_NAMES: Final[Mapping[str, tuple[Key, Synonym]]] = {
    synonym.name: (key, synonym) for key in TOPIC_KEYS.values() for synonym in key.synonyms
}
"""Every broker key that sets the default of a topic key."""

CONFIG_NAMES: Final = frozenset(BROKER_NAMES) | frozenset(TOPIC_DEFAULT_NAMES)
"""Every name that may stand in the broker's configuration."""
