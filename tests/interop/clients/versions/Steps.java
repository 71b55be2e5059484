// The four steps of client_versions.py by any kafka-clients from 2.1 on. Arguments: SERVER NAME.
import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Steps {
  interface Step {
    void run() throws Exception;
  }

  static String server;
  static String name;

  public static void main(String[] args) {
    server = args[0];
    name = args[1];
    step("admin", Steps::admin);
    step("produce", Steps::produce);
    step("group", Steps::group);
    step("transaction", Steps::transaction);
    System.exit(0);
  }

  static void step(String label, Step step) {
    String outcome = "";
    try {
      step.run();
    } catch (Throwable error) {
      outcome = String.valueOf(error.getCause() == null ? error : error.getCause());
    }
    System.out.println(label + "\t" + outcome.replaceAll("\\s+", " "));
  }

  static Map<String, Object> settings(Object... more) {
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", server);
    settings.put("request.timeout.ms", 10000);
    settings.put("default.api.timeout.ms", 20000);
    for (int at = 0; at < more.length; at += 2) settings.put((String) more[at], more[at + 1]);
    return settings;
  }

  static void admin() throws Exception {
    try (AdminClient admin = AdminClient.create(settings())) {
      admin.createTopics(Collections.singleton(new NewTopic(name, 1, (short) 1))).all().get(20, TimeUnit.SECONDS);
    }
  }

  static KafkaProducer<String, String> producer(Object... more) {
    Map<String, Object> settings = settings(more);
    settings.remove("default.api.timeout.ms");
    settings.put("max.block.ms", 20000);
    settings.put("delivery.timeout.ms", 20000);
    return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
  }

  static void produce() throws Exception {
    try (KafkaProducer<String, String> producer = producer("acks", "all")) {
      for (int number = 0; number < 3; number++) producer.send(new ProducerRecord<>(name, "k", "v")).get();
    }
  }

  static void group() {
    Map<String, Object> settings =
        settings("group.id", name, "auto.offset.reset", "earliest", "enable.auto.commit", false);
    try (KafkaConsumer<String, String> consumer =
        new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      consumer.subscribe(Collections.singleton(name));
      long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
      for (int found = 0; found < 3; ) {
        if (System.nanoTime() > end) throw new IllegalStateException(found + " of 3 records in 30 s");
        found += consumer.poll(Duration.ofMillis(500)).count();
      }
      consumer.commitSync();
    }
  }

  static void transaction() throws Exception {
    try (KafkaProducer<String, String> producer = producer("transactional.id", name)) {
      producer.initTransactions();
      for (int number = 0; number < 3; number++) {
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(name, "k", "v")).get();
        if (number == 1) producer.abortTransaction();
        else producer.commitTransaction();
      }
    }
  }
}
