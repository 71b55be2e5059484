import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own client for Java, as conversation.py has it. Argument: the server. */
public final class JavaClient {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final int TIMEOUT_SECONDS = 30;
  private static String server;

  public static void main(String[] arguments) throws Exception {
    server = arguments[0];
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    try (Admin admin = Admin.create(settings())) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        Map<String, Object> told = new HashMap<>();
        try {
          told.put("result", done(admin, JSON.readTree(line)));
        } catch (Exception error) {
          Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
          told.put("error", cause.toString());
        }
        System.out.println(JSON.writeValueAsString(told));
      }
    }
  }

  private static Object done(Admin admin, JsonNode step) throws Exception {
    String topic = step.path("topic").asText();
    TopicPartition place = new TopicPartition(topic, step.path("partition").asInt());
    switch (step.get("do").asText()) {
      case "produce":
        return produce(place, step);
      case "consume":
        return consume(place, step.get("offset").asLong(), step.get("count").asInt());
      case "keep_on":
        return keepOn(place, step.get("seconds").asDouble());
      case "login":
        admin.describeCluster().clusterId().get(TIMEOUT_SECONDS, TimeUnit.SECONDS);
        return null;
      case "group":
        return group(topic, step.get("group").asText(), step.get("count").asInt());
      default:
        throw new IllegalArgumentException(step.toString());
    }
  }

  private static Long produce(TopicPartition place, JsonNode step) throws Exception {
    Map<String, Object> settings = settings();
    settings.put("acks", step.get("acks").asText());
    settings.put("compression.type", step.get("codec").asText());
    settings.put("enable.idempotence", step.get("idempotent").asBoolean());
    settings.put("linger.ms", 100);
    settings.put("key.serializer", ByteArraySerializer.class);
    settings.put("value.serializer", ByteArraySerializer.class);
    try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
      List<Future<RecordMetadata>> sent = new ArrayList<>();
      for (JsonNode record : step.get("records")) {
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : record.get(2)) {
          headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
        }
        sent.add(producer.send(new ProducerRecord<>(place.topic(), place.partition(), record.get(3).asLong(),
            bytes(record.get(0)), bytes(record.get(1)), headers)));
      }
      producer.flush();
      RecordMetadata first = sent.get(0).get(TIMEOUT_SECONDS, TimeUnit.SECONDS);
      return first.hasOffset() ? first.offset() : null;
    }
  }

  private static int keepOn(TopicPartition place, double seconds) throws Exception {
    Map<String, Object> settings = settings();
    settings.put("acks", "all");
    settings.put("key.serializer", ByteArraySerializer.class);
    settings.put("value.serializer", ByteArraySerializer.class);
    try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
      int sent = 0;
      long end = System.nanoTime() + (long) (seconds * 1e9);
      while (System.nanoTime() < end) {
        producer.send(new ProducerRecord<>(place.topic(), place.partition(), null, "value".getBytes()))
            .get(TIMEOUT_SECONDS, TimeUnit.SECONDS);
        sent++;
        Thread.sleep(100);
      }
      return sent;
    }
  }

  private static List<Object> consume(TopicPartition place, long offset, int count) throws Exception {
    List<Object> found = new ArrayList<>();
    try (KafkaConsumer<byte[], byte[]> consumer = consumer(null)) {
      consumer.assign(List.of(place));
      consumer.seek(place, offset);
      long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_SECONDS);
      while (found.size() < count && System.nanoTime() < end) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
          if (found.size() < count) {
            List<Object> headers = new ArrayList<>();
            for (Header header : record.headers()) {
              headers.add(listOf(header.key(), text(header.value())));
            }
            found.add(listOf(record.offset(), text(record.key()), text(record.value()), headers, record.timestamp()));
          }
        }
      }
    }
    return found;
  }

  private static List<Object> group(String topic, String group, int count) throws Exception {
    List<Object> found = new ArrayList<>();
    try (KafkaConsumer<byte[], byte[]> consumer = consumer(group)) {
      consumer.subscribe(List.of(topic));
      long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_SECONDS);
      while (found.size() < count && System.nanoTime() < end) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
          found.add(listOf(record.partition(), record.offset()));
        }
      }
      consumer.commitSync();
    }
    return found;
  }

  private static KafkaConsumer<byte[], byte[]> consumer(String group) throws Exception {
    Map<String, Object> settings = settings();
    if (group != null) {
      settings.put("group.id", group);
      settings.put("auto.offset.reset", "earliest");
      settings.put("enable.auto.commit", false);
      settings.put("max.poll.records", 1);
    }
    settings.put("key.deserializer", ByteArrayDeserializer.class);
    settings.put("value.deserializer", ByteArrayDeserializer.class);
    return new KafkaConsumer<>(settings);
  }

  private static Map<String, Object> settings() throws Exception {
    Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", server));
    JsonNode security = JSON.readTree(System.getenv().getOrDefault("INTEROP_SECURITY", "{}"));
    if (security.has("protocol")) {
      settings.put("security.protocol", security.get("protocol").asText());
    }
    if (security.has("authority")) {
      settings.put("ssl.truststore.type", "PEM");
      settings.put("ssl.truststore.location", security.get("authority").asText());
    }
    if (security.has("key")) {
      settings.put("ssl.keystore.type", "PEM");
      settings.put("ssl.keystore.key", Files.readString(Path.of(security.get("key").asText())));
      settings.put("ssl.keystore.certificate.chain", Files.readString(Path.of(security.get("chain").asText())));
    }
    if (security.has("mechanism")) {
      settings.put("sasl.mechanism", security.get("mechanism").asText());
      settings.put("sasl.jaas.config", jaas(security));
    }
    return settings;
  }

  private static String jaas(JsonNode security) {
    String modules = "org.apache.kafka.common.security.";
    String account = String.format(
        "username=\"%s\" password=\"%s\";", security.path("user").asText(), security.path("password").asText());
    switch (security.get("mechanism").asText()) {
      case "PLAIN":
        return modules + "plain.PlainLoginModule required " + account;
      case "OAUTHBEARER": // it makes a token of its own, without a signature
        return modules + "oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\""
            + security.get("user").asText() + "\" unsecuredLoginLifetimeSeconds=\""
            + security.path("lives").asText("3600") + "\";";
      default:
        return modules + "scram.ScramLoginModule required " + account;
    }
  }

  private static byte[] bytes(JsonNode node) {
    return node.isNull() ? null : Base64.getDecoder().decode(node.asText());
  }

  private static String text(byte[] bytes) {
    return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
  }

  private static List<Object> listOf(Object... values) {
    List<Object> list = new ArrayList<>();
    for (Object value : values) {
      list.add(value); // which may be null
    }
    return list;
  }
}
