import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A member of a group until SIGTERM, as confluent_member.py. Arguments: settings as JSON, topics. */
public final class JavaMember {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static volatile boolean isOver;

  public static void main(String[] arguments) throws Exception {
    Thread reader = Thread.currentThread();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      isOver = true;
      try {
        reader.join();
      } catch (InterruptedException error) {
        throw new IllegalStateException(error);
      }
    }));
    Map<String, Object> settings = new HashMap<>(JSON.readValue(arguments[0], Map.class));
    settings.put("key.deserializer", ByteArrayDeserializer.class);
    settings.put("value.deserializer", ByteArrayDeserializer.class);
    List<String> topics = List.of(arguments).subList(1, arguments.length);
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
      if (topics.get(0).startsWith("^")) {
        consumer.subscribe(new SubscriptionPattern(topics.get(0)));
      } else {
        consumer.subscribe(topics);
      }
      List<Object> told = null;
      while (!isOver) {
        for (ConsumerRecord<byte[], byte[]> record : polled(consumer)) {
          say("record", List.of(record.topic(), record.partition(), record.offset()));
        }
        List<Object> assigned = new ArrayList<>();
        for (TopicPartition place : consumer.assignment()) {
          assigned.add(List.of(place.topic(), place.partition()));
        }
        if (!assigned.equals(told)) {
          say("assigned", assigned);
          told = assigned;
        }
      }
    }
  }

  private static Iterable<ConsumerRecord<byte[], byte[]>> polled(KafkaConsumer<byte[], byte[]> consumer) {
    try {
      return consumer.poll(Duration.ofMillis(100));
    } catch (RetriableException error) {
      return List.of(); // while there is no broker
    }
  }

  private static void say(String what, Object value) throws Exception {
    System.out.println(JSON.writeValueAsString(Map.of(what, value)));
  }
}
