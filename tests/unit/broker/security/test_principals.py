"""Names of certificates as Kafka makes them."""

from datetime import UTC, datetime
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import NameAttribute, RelativeDistinguishedName
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from seglog_broker.security.principals import PrincipalRules, subject_of
from seglog_protocol.errors import AuthenticationError, InvalidConfigError
from tests.support import each_case

# --- Subjects ---------------------------------------------------------------------------------------------------------


def certificate_of(*parts: NameAttribute[str] | RelativeDistinguishedName) -> bytes:
    relatives = [RelativeDistinguishedName([part]) if isinstance(part, NameAttribute) else part for part in parts]
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([]),
        subject_name=x509.Name(relatives),
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=datetime(2030, 1, 1, tzinfo=UTC),
        not_valid_after=datetime(2031, 1, 1, tzinfo=UTC),
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(encoding=Encoding.DER)


def name(text: str, kind: _ASN1Type | None = None) -> NameAttribute[str]:
    return NameAttribute(NameOID.COMMON_NAME, text, kind)


@each_case(
    ("parts", "subject"),
    [
        (
            [
                NameAttribute(NameOID.COUNTRY_NAME, "US"),
                NameAttribute(NameOID.STATE_OR_PROVINCE_NAME, "MD"),
                NameAttribute(NameOID.LOCALITY_NAME, "Fulton"),
                NameAttribute(NameOID.ORGANIZATION_NAME, "mycp"),
                NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "SME"),
                name("Duke"),
            ],
            "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US",
        ),
        (
            [
                NameAttribute(NameOID.DOMAIN_COMPONENT, "cz"),
                NameAttribute(NameOID.DOMAIN_COMPONENT, "geodis"),
                NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "ITZ"),
                name("Tkac, Adam"),
            ],
            r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz",
        ),
        ([name(' a+b=c<d>e#f;g"h\\i  ')], r"CN=\ a\+b\=c\<d\>e\#f\;g\"h\\i\ \ "),
        (
            [name("alice"), NameAttribute(NameOID.EMAIL_ADDRESS, "alice@example.org")],
            "1.2.840.113549.1.9.1=#1611616c696365406578616d706c652e6f7267,CN=alice",
        ),
        (
            [
                RelativeDistinguishedName([name("alice"), NameAttribute(NameOID.USER_ID, "17")]),
                NameAttribute(NameOID.STREET_ADDRESS, "Main St"),
            ],
            "STREET=Main St,CN=alice+UID=17",
        ),
        ([name("J\u00fcrgen \u4e2d\U0001f600")], "CN=J\u00fcrgen \u4e2d\U0001f600"),
        (
            [
                NameAttribute(NameOID.SERIAL_NUMBER, "42"),
                NameAttribute(NameOID.GIVEN_NAME, "Al"),
                NameAttribute(NameOID.TITLE, "Dr"),
                name("x"),
            ],
            "CN=x,2.5.4.12=#0c024472,2.5.4.42=#0c02416c,2.5.4.5=#13023432",
        ),
        ([name("   ")], r"CN=\ \ \ "),
        ([name("\rtab\t\r")], "CN=\\\rtab\t\\\r"),
        ([name("a\0b")], r"CN=a\00b"),
        ([name("bmp", _ASN1Type.BMPString)], r"CN=\00b\00m\00p"),
        ([name("uni", _ASN1Type.UniversalString)], "CN=#1c0c000000750000006e00000069"),
        ([name("tele", _ASN1Type.T61String)], "CN=tele"),
        ([NameAttribute(NameOID.EMAIL_ADDRESS, "y" * 200)], "1.2.840.113549.1.9.1=#1681c8" + "79" * 200),
        ([], ""),
    ],
)
def test_a_subject_is_written_as_java_writes_it(
    parts: list[NameAttribute[str] | RelativeDistinguishedName], subject: str
) -> None:
    """The texts are what X500Principal.getName() of Java 17 gave for these subjects."""
    assert subject_of(certificate_of(*parts)) == subject


@pytest.mark.parametrize("certificate", [b"", b"\x30\x00", bytes.fromhex("3081fb3081a3a003020102")])
def test_a_certificate_that_cannot_be_read_is_nobodys(certificate: bytes) -> None:
    with pytest.raises(AuthenticationError):
        subject_of(certificate)


# --- Rules: the cases of Kafka's SslPrincipalMapperTest ---------------------------------------------------------------

DUKE: Final = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@each_case(
    "rules",
    [
        "DEFAULT",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
        "RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U",
        "RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/",
        "RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/",
    ],
)
def test_kafkas_valid_rules_are_taken(rules: str) -> None:
    PrincipalRules.parse(rules)


@each_case(
    "rules",
    [
        *("default", "DEFAUL", "DEFAULT/L", "DEFAULT/U"),
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
    ],
)
def test_kafkas_invalid_rules_are_refused(rules: str) -> None:
    with pytest.raises(InvalidConfigError, match="is no rule: write RULE:pattern/replacement/") as caught:
        PrincipalRules.parse(rules)
    assert caught.value.key == "ssl.principal.mapping.rules"


@each_case(
    ("subject", "principal"),
    [
        (DUKE, "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_makes_the_name(subject: str, principal: str) -> None:
    rules = [
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    ]
    assert PrincipalRules.parse(", ".join(rules)).name_of(subject) == principal


@each_case(
    ("rules", "parsed"),
    [
        ("", []),
        ("DEFAULT", ["DEFAULT"]),
        ("RULE:/x/", ["RULE:/x"]),
        ("RULE:/.*/", ["RULE:/.*"]),
        ("RULE:/.*/L", ["RULE:/.*/L"]),
        ("  RULE:/x/ ,  DEFAULT  ", ["RULE:/x", "DEFAULT"]),
        ("  RULE:   /     / ,  DEFAULT  ", ["RULE:   /     ", "DEFAULT"]),
        ("  RULE:  /     /U   ,DEFAULT  ", ["RULE:  /     /U", "DEFAULT"]),
        (
            "  RULE:([A-Z]*)/$1/U   ,RULE:([a-z]+)/$1/,   DEFAULT  ",
            ["RULE:([A-Z]*)/$1/U", "RULE:([a-z]+)/$1", "DEFAULT"],
        ),
        (",   , , ,      , , ,   ", []),
        (",,RULE:/x/,,,DEFAULT,,", ["RULE:/x", "DEFAULT"]),
        (",  , RULE: /   /    ,,,   DEFAULT, ,   ", ["RULE: /   ", "DEFAULT"]),
        ("     ,  , RULE:   /  /U    ,,  ,DEFAULT, ,", ["RULE:   /  /U", "DEFAULT"]),
        (r"RULE:\/\\\(\)\n\t/\/\//", [r"RULE:\/\\\(\)\n\t/\/\/"]),
        (r"RULE:\**\/+/*/L,RULE:\/*\**/**/", [r"RULE:\**\/+/*/L", r"RULE:\/*\**/**"]),
        (
            r"RULE:,RULE:,/,RULE:,\//U,RULE:,/RULE:,/,RULE:,RULE:,/L,RULE:,/L,RULE:, DEFAULT, /DEFAULT/,DEFAULT",
            [
                r"RULE:,RULE:,/,RULE:,\//U",
                "RULE:,/RULE:,",
                "RULE:,RULE:,/L,RULE:,/L",
                "RULE:, DEFAULT, /DEFAULT",
                "DEFAULT",
            ],
        ),
    ],
)
def test_rules_are_split_as_kafka_splits_them(rules: str, parsed: list[str]) -> None:
    assert PrincipalRules.parse(rules).texts() == parsed


def test_a_comma_in_a_name_stays() -> None:
    rules = PrincipalRules.parse(r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT")
    assert rules.name_of(r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz") == r"Tkac\, Adam"


# --- Rules: more ------------------------------------------------------------------------------------------------------


@each_case(
    ("rule", "name"),
    [
        ("RULE:^CN=([^,]+).*$/$12/", "Duke2"),
        ("RULE:^CN=([^,]+).*$/$01/", "Duke"),
        ("RULE:^CN=([^,]+).*$/$0/", DUKE),
        (r"RULE:^CN=([^,]+).*$/\$1\/x/", "$1/x"),
        ("RULE:^CN=(?<who>[^,]+).*$/${who}/", "Duke"),
        ("RULE:CN=(.*?)/<$1>/", "<>Duke,OU=ServiceUsers,O=Org,C=US"),
        ("RULE:.*/x/", "xx"),
        ("RULE:CN=Duke(x)?.*/a$1b/", "ab"),
    ],
)
def test_a_replacement_is_javas(rule: str, name: str) -> None:
    """What Kafka's SslPrincipalMapper makes of it, its oddities included."""
    assert PrincipalRules.parse(rule).name_of(DUKE) == name


@each_case(
    ("rule", "why"),
    [
        ("RULE:(/x/", "is no regular expression of RE2"),
        ("RULE:(?=x).*/x/", "is no regular expression of RE2"),
        ("RULE:.*/$1/", "the pattern has no groups"),
        ("RULE:.*/$x/", "is followed by the number of a group"),
        ("RULE:(.*)/${x}/", "the pattern has no group x"),
        ("RULE:.*//", "the replacement of a rule is empty"),
        ("RULE:^CN=([^,]+).*$/$1/,RULE:.*//L,DEFAULT", "the replacement of a rule is empty"),
        ("RULE:^CN=([^,]+).*$/$2/", "the pattern has 1 group, and its replacement names $2"),
        ("RULE:^CN=([^,]+).*$/$1@$4/", "the pattern has 1 group, and its replacement names $4"),
        ("RULE:^CN=.*$/$1/", "the pattern has no groups, and its replacement names $1"),
    ],
)
def test_a_rule_that_could_make_no_name_is_refused_at_once(rule: str, why: str) -> None:
    """Some of them Kafka takes, and makes ``User:`` and ``User:$2`` of every certificate."""
    with pytest.raises(InvalidConfigError, match=r"ssl\.principal\.mapping\.rules = RULE:") as caught:
        PrincipalRules.parse(rule)
    assert why in caught.value.message


def test_a_subject_that_no_rule_matches_is_nobodys() -> None:
    for rules in ("", "RULE:^cn=.*$/x/"):
        with pytest.raises(AuthenticationError, match=r"no rule of ssl\.principal\.mapping\.rules matches"):
            PrincipalRules.parse(rules).name_of(DUKE)


def test_no_rule_takes_longer_than_the_subject_is_long() -> None:
    """Java would not come back from this one."""
    rules = PrincipalRules.parse("RULE:^(a+)+$/x/,DEFAULT")
    assert rules.name_of("a" * 50_000 + "!").endswith("!")


@each_case(
    ("rules", "subject"),
    [
        ("RULE:^CN=Duke(x)?.*$/$1/", DUKE),
        ("RULE:^CN=(.*)$/$1/", "CN=ANONYMOUS"),
        ("RULE:^CN=(.*)$/$1/U", "CN=anonymous"),
        (r"RULE:^CN=(.*)$/ /", DUKE),
        ("DEFAULT", ""),
    ],
)
def test_a_certificate_that_becomes_nobody_is_not_let_in(rules: str, subject: str) -> None:
    with pytest.raises(AuthenticationError, match="which names nobody"):
        PrincipalRules.parse(rules).name_of(subject)
