import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group with Kafka's own client for Java; its lines: tests/members/lines.py, its pace:
 * tests/members/programs/telling.py. Arguments: the server, the topic, the group, and who it is.
 */
public final class JavaWorker implements ConsumerRebalanceListener {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final int HANDLE_MS = 2;

  private final KafkaConsumer<byte[], byte[]> consumer;
  private final String topic;
  private final String group;
  private final String who;
  private final Map<Integer, Long> uncommitted = new HashMap<>();
  private String member = "";
  private Integer generation;

  private JavaWorker(KafkaConsumer<byte[], byte[]> consumer, String topic, String group, String who) {
    this.consumer = consumer;
    this.topic = topic;
    this.group = group;
    this.who = who;
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", arguments[0]);
    settings.put("group.id", arguments[2]);
    settings.put("client.id", arguments[3]);
    settings.put("group.protocol", "classic");
    settings.put("auto.offset.reset", "earliest");
    settings.put("enable.auto.commit", false);
    settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
    settings.put("session.timeout.ms", 6000);
    settings.put("heartbeat.interval.ms", 500);
    settings.put("max.poll.records", 20);
    settings.put("key.deserializer", ByteArrayDeserializer.class);
    settings.put("value.deserializer", ByteArrayDeserializer.class);
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
      new JavaWorker(consumer, arguments[1], arguments[2], arguments[3]).run();
    }
  }

  private void run() throws Exception {
    consumer.subscribe(List.of(topic), this);
    while (true) {
      for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
        Thread.sleep(HANDLE_MS);
        tell("handled", Map.of("partition", record.partition(), "offset", record.offset()));
        uncommitted.put(record.partition(), record.offset() + 1);
      }
      if (!uncommitted.isEmpty()) {
        commit();
      }
    }
  }

  private void commit() {
    Map<TopicPartition, OffsetAndMetadata> offsets = uncommitted.entrySet().stream().collect(
        Collectors.toMap(
            each -> new TopicPartition(topic, each.getKey()), each -> new OffsetAndMetadata(each.getValue())));
    Map<String, Object> facts = new LinkedHashMap<>();
    facts.put("begun", seconds());
    try {
      consumer.commitSync(offsets);
      facts.put("ended", seconds());
      facts.put("member", member);
      facts.put("generation", generation);
      facts.put("offsets", uncommitted);
      tell("committed", facts);
      uncommitted.clear();
    } catch (KafkaException error) {
      facts.put("ended", seconds());
      facts.put("error", error.toString());
      tell("refused", facts);
    }
  }

  @Override
  public void onPartitionsAssigned(Collection<TopicPartition> places) {
    ConsumerGroupMetadata metadata = consumer.groupMetadata();
    member = metadata.memberId();
    generation = metadata.generationId() < 0 ? null : metadata.generationId();
    uncommitted.clear();
    Map<String, Object> facts = new LinkedHashMap<>();
    facts.put("at", seconds());
    facts.put("member", member);
    facts.put("generation", generation);
    facts.put("partitions", numbers(places));
    tell("assigned", facts);
  }

  @Override
  public void onPartitionsRevoked(Collection<TopicPartition> places) {
    gone(places, false);
  }

  @Override
  public void onPartitionsLost(Collection<TopicPartition> places) {
    gone(places, true);
  }

  private void gone(Collection<TopicPartition> places, boolean lost) {
    uncommitted.clear();
    tell("revoked", Map.of("at", seconds(), "partitions", numbers(places), "lost", lost));
  }

  private static List<Integer> numbers(Collection<TopicPartition> places) {
    return places.stream().map(TopicPartition::partition).sorted().toList();
  }

  private static double seconds() {
    return System.nanoTime() / 1e9; // on Linux that of Python's time.monotonic()
  }

  private void tell(String told, Map<String, ?> facts) {
    Map<String, Object> line = new LinkedHashMap<>();
    line.put("told", told);
    line.put("group", group);
    line.put("who", who);
    line.putAll(facts);
    try {
      System.out.println(JSON.writeValueAsString(line));
    } catch (com.fasterxml.jackson.core.JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
  }
}
