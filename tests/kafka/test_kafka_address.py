"""Addresses of Kafka clusters: parsed parts, properties for the client, and hidden secrets."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from headrace.errors import DefiniteError
from headrace.kafka.address import PASSWORD_VARIABLE, SECRETS_VARIABLE, is_secret, parse_kafka_url, without_secrets


def test_servers_topic_and_properties() -> None:
    address = parse_kafka_url("kafka://a:9093,b/shop_orders_generic?client.id=me&fetch.max.bytes=1000")
    assert (address.servers, address.topic) == ("a:9093,b:9092", "shop_orders_generic")
    assert address.client_settings() == {"bootstrap.servers": "a:9093,b:9092", "client.id": "me", "fetch.max.bytes": "1000"}
    assert address.spark_options() == {
        "kafka.bootstrap.servers": "a:9093,b:9092",
        "kafka.client.id": "me",
        "kafka.fetch.max.bytes": "1000",
    }
    assert pickle.loads(pickle.dumps(address)) == address


def test_an_account_is_passed_on_and_its_password_is_never_shown() -> None:
    address = parse_kafka_url("kafka://me:s%22ecret%40@h:1/?sasl.mechanism=SCRAM-SHA-512&ssl.key.password=hidden")
    assert str(address) == "kafka://me@h:1/"
    assert "ecret" not in repr(address) + str(address)
    assert "hidden" not in repr(address)
    settings = address.client_settings()
    assert (settings["sasl.username"], settings["sasl.password"]) == ("me", 's"ecret@')
    assert (settings["security.protocol"], settings["sasl.mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    jaas = address.spark_options()["kafka.sasl.jaas.config"]
    assert jaas == 'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="s\\"ecret@";'


def test_a_password_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "from outside")
    assert parse_kafka_url("kafka://me@h").password == "from outside"
    assert parse_kafka_url("kafka://me:own@h").password == "own"


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "sasl.jaas.config", "sasl.oauthbearer.client.secret"])
def test_secrets(name: str) -> None:
    assert is_secret(name)
    assert not is_secret("sasl.mechanism")


@pytest.mark.parametrize(
    "url",
    ["kafka://", "kafka:///topic", "mysql://h", "kafka://h:port", "kafka://:9092", "kafka://@h", "kafka://h/?a=1&a=2", "h:9092"],
)
def test_addresses_that_cannot_be_read(url: str) -> None:
    with pytest.raises(DefiniteError) as caught:
        parse_kafka_url(url)
    assert caught.value.hint


def test_secret_properties_leave_the_address_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "kafka://h:1/t?security.protocol=SSL&ssl.key.password=a%26b&acks=all&sasl.oauthbearer.client.secret=c"
    shown, secret = without_secrets(url)
    assert shown == "kafka://h:1/t?security.protocol=SSL&acks=all"
    whole = dict(parse_kafka_url(url).properties)
    monkeypatch.setenv(SECRETS_VARIABLE, secret)
    assert dict(parse_kafka_url(shown).properties) == whole
    assert whole["ssl.key.password"] == "a&b"
    assert without_secrets("kafka://h:1/t?ssl.key.password=x") == ("kafka://h:1/t", "ssl.key.password=x")
    assert without_secrets("kafka://h:1/t") == ("kafka://h:1/t", "")


def test_certificates_in_the_words_of_javas_client(tmp_path: Path) -> None:
    for name, text in (
        ("ca", "authority"),
        ("cert", "ours"),
        ("key", "-----BEGIN PRIVATE KEY-----"),
        ("old", "-----BEGIN RSA PRIVATE KEY"),
    ):
        (tmp_path / name).write_text(text)
    own = f"ssl.certificate.location={tmp_path}/cert&ssl.key.location={tmp_path}/"
    same = "security.protocol=SSL&ssl.key.password=secret&ssl.endpoint.identification.algorithm=none"
    address = parse_kafka_url(f"kafka://h:1/?{same}&ssl.ca.location={tmp_path}/ca&{own}key")
    assert address.spark_options() == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.ssl.key.password": "secret",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "authority",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "ours",
        "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----",
    }
    for query, place in (
        (f"{own}old", "ssl.key.location"),
        ("ssl.ca.location=/nowhere", "ssl.ca.location"),
        ("enable.ssl.certificate.verification=false", "enable.ssl.certificate.verification"),
    ):
        with pytest.raises(DefiniteError) as caught:
            parse_kafka_url(f"kafka://h:1/?{query}").spark_options()
        assert caught.value.place == place
        assert caught.value.hint


def test_an_account_among_the_properties() -> None:
    address = parse_kafka_url("kafka://h:1/?security.protocol=SASL_PLAINTEXT&sasl.mechanisms=PLAIN&sasl.username=me&sasl.password=own")
    assert address.spark_options()["kafka.sasl.mechanism"] == "PLAIN"
    assert address.spark_options()["kafka.sasl.jaas.config"].endswith('PlainLoginModule required username="me" password="own";')
