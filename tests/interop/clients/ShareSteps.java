// What members of share groups see, by kafka-clients from 4.3 on. Arguments: SERVER NAME. A line a step: name, what was seen.
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class ShareSteps {
  interface Step {
    String run(String topic) throws Exception;
  }

  static final int JOBS = 12;
  static final int LOCK_MS = 1500;
  static final long PATIENCE_MS = 30_000;
  static String server;

  public static void main(String[] args) throws Exception {
    server = args[0];
    Map<String, Step> steps = new TreeMap<>();
    steps.put("implicit", ShareSteps::implicit);
    steps.put("explicit", ShareSteps::explicit);
    steps.put("poison", ShareSteps::poison);
    steps.put("renewal", ShareSteps::renewal);
    steps.put("expiry", ShareSteps::expiry);
    steps.put("members", ShareSteps::members);
    steps.put("exact", ShareSteps::exact);
    steps.put("committed", ShareSteps::committed);
    for (Map.Entry<String, Step> step : steps.entrySet()) {
      String told;
      try {
        told = step.getValue().run(prepared(args[1] + "-" + step.getKey()));
      } catch (Throwable error) {
        told = "failed: " + (error.getCause() == null ? error : error.getCause());
      }
      System.out.println(step.getKey() + "\t" + told.replaceAll("\\s+", " "));
    }
    System.exit(0);
  }

  // --- Steps -----------------------------------------------------------------------------------------------------------

  static String implicit(String topic) throws Exception {
    produce(topic, "", JOBS, false);
    String told;
    try (KafkaShareConsumer<String, String> consumer = consumer(topic)) {
      told = counts(poll(consumer, JOBS)) + " acknowledged " + consumer.commitSync().values();
    }
    try (KafkaShareConsumer<String, String> consumer = consumer(topic)) {
      return told + ", then " + counts(poll(consumer, 0));
    }
  }

  static String explicit(String topic) throws Exception {
    produce(topic, "", JOBS, false);
    try (KafkaShareConsumer<String, String> consumer = consumer(topic, "share.acknowledgement.mode", "explicit")) {
      List<ConsumerRecord<String, String>> found = poll(consumer, JOBS);
      String told = counts(found);
      for (ConsumerRecord<String, String> record : found) {
        int job = Integer.parseInt(record.value());
        consumer.acknowledge(record, job % 3 == 0 ? AcknowledgeType.RELEASE : job % 3 == 1 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT);
      }
      told += " acknowledged " + consumer.commitSync().values();
      found = poll(consumer, (JOBS + 2) / 3);
      found.forEach(record -> consumer.acknowledge(record));
      return told + ", then " + counts(found) + " acknowledged " + consumer.commitSync().values();
    }
  }

  // A record that is always released goes round as often as the limit allows.
  static String poison(String topic) throws Exception {
    produce(topic, "", 1, false);
    StringBuilder told = new StringBuilder();
    try (KafkaShareConsumer<String, String> consumer = consumer(topic, "share.acknowledgement.mode", "explicit")) {
      for (int round = 0; round < 6; round++) {
        List<ConsumerRecord<String, String>> found = poll(consumer, round < 5 ? 1 : 0);
        told.append(counts(found)).append(' ');
        found.forEach(record -> consumer.acknowledge(record, AcknowledgeType.RELEASE));
        if (!found.isEmpty()) consumer.commitSync();
      }
    }
    return told.toString();
  }

  // Locks are renewed for longer than they last; nobody else gets the records.
  static String renewal(String topic) throws Exception {
    produce(topic, "", 3, false);
    try (KafkaShareConsumer<String, String> consumer = consumer(topic, "share.acknowledgement.mode", "explicit");
        KafkaShareConsumer<String, String> other = consumer(topic)) {
      List<ConsumerRecord<String, String>> found = poll(consumer, 3);
      String told = counts(found) + " locked for " + consumer.acquisitionLockTimeoutMs().orElse(-1);
      for (int round = 0; round < 4; round++) {
        Thread.sleep(LOCK_MS / 2);
        found.forEach(record -> consumer.acknowledge(record, AcknowledgeType.RENEW));
        told += " renewed " + consumer.commitSync().values();
        found = poll(consumer, 3, 100); // which gives them again
        poll(other, 0, 100);
      }
      found.forEach(record -> consumer.acknowledge(record));
      return told + " accepted " + consumer.commitSync().values() + ", then " + counts(poll(other, 0));
    }
  }

  // A lock runs out: another member gets the record, and the first one is told so.
  static String expiry(String topic) throws Exception {
    produce(topic, "", 1, false);
    try (KafkaShareConsumer<String, String> consumer = consumer(topic, "share.acknowledgement.mode", "explicit");
        KafkaShareConsumer<String, String> other = consumer(topic)) {
      List<ConsumerRecord<String, String>> found = poll(consumer, 1);
      List<ConsumerRecord<String, String>> again = poll(other, 1);
      found.forEach(record -> consumer.acknowledge(record));
      return counts(found) + ", then " + counts(again) + " late " + consumer.commitSync().values() + " in time " + other.commitSync().values();
    }
  }

  // Three members share one partition: each job is done once.
  static String members(String topic) throws Exception {
    List<KafkaShareConsumer<String, String>> consumers = new ArrayList<>();
    List<ConsumerRecord<String, String>> found = new ArrayList<>();
    TreeSet<Integer> busy = new TreeSet<>();
    for (int number = 0; number < 3; number++)
      consumers.add(consumer(topic, "max.poll.records", 5, "share.acquire.mode", "record_limit"));
    produce(topic, "", 60, false);
    long ends = System.currentTimeMillis() + PATIENCE_MS;
    while (found.size() < 60 && System.currentTimeMillis() < ends)
      for (KafkaShareConsumer<String, String> consumer : consumers) {
        List<ConsumerRecord<String, String>> some = poll(consumer, 0, 100);
        if (!some.isEmpty()) busy.add(consumers.indexOf(consumer));
        found.addAll(some);
      }
    for (KafkaShareConsumer<String, String> consumer : consumers) consumer.close();
    return found.size() + " jobs, " + distinct(found) + " different, by " + (busy.size() > 1 ? "several" : "one");
  }

  // Of a batch of many records no more are acquired than asked for.
  static String exact(String topic) throws Exception {
    produce(topic, "", JOBS, false);
    try (KafkaShareConsumer<String, String> consumer = consumer(topic, "max.poll.records", 5, "share.acquire.mode", "record_limit");
        KafkaShareConsumer<String, String> other = consumer(topic)) {
      return counts(poll(consumer, 5)) + ", others " + counts(poll(other, JOBS - 5));
    }
  }

  // Records of aborted transactions are not seen at read_committed.
  static String committed(String topic) throws Exception {
    set(topic, "share.isolation.level", "read_committed");
    produce(topic, "a", 3, true);
    produce(topic, "b", 3, false);
    try (KafkaShareConsumer<String, String> consumer = consumer(topic)) {
      return counts(poll(consumer, 3)) + ", then " + counts(poll(consumer, 0));
    }
  }

  // --- What they need --------------------------------------------------------------------------------------------------

  static String prepared(String topic) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", server))) {
      admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
    }
    set(topic, "share.auto.offset.reset", "earliest");
    set(topic, "share.record.lock.duration.ms", Integer.toString(LOCK_MS));
    return topic;
  }

  static void set(String group, String name, String value) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", server))) {
      ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
      AlterConfigOp set = new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
      admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
    }
  }

  static void produce(String topic, String prefix, int count, boolean aborted) throws Exception {
    Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", server, "linger.ms", 100));
    settings.put("key.serializer", StringSerializer.class);
    settings.put("value.serializer", StringSerializer.class);
    if (aborted) settings.put("transactional.id", topic);
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
      if (aborted) {
        producer.initTransactions();
        producer.beginTransaction();
      }
      for (int number = 0; number < count; number++) producer.send(new ProducerRecord<>(topic, prefix + number));
      producer.flush();
      if (aborted) producer.abortTransaction();
    }
  }

  static KafkaShareConsumer<String, String> consumer(String topic, Object... more) {
    Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", server, "group.id", topic));
    settings.put("key.deserializer", StringDeserializer.class);
    settings.put("value.deserializer", StringDeserializer.class);
    for (int index = 0; index < more.length; index += 2) settings.put((String) more[index], more[index + 1]);
    KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings);
    consumer.subscribe(List.of(topic));
    return consumer;
  }

  // The records of polls until there are as many; of 0 those of one poll that lasts longer than any lock.
  static List<ConsumerRecord<String, String>> poll(KafkaShareConsumer<String, String> consumer, int count) {
    return poll(consumer, count, 2 * LOCK_MS);
  }

  static List<ConsumerRecord<String, String>> poll(KafkaShareConsumer<String, String> consumer, int count, long pollMs) {
    List<ConsumerRecord<String, String>> found = new ArrayList<>();
    long ends = System.currentTimeMillis() + PATIENCE_MS;
    do {
      consumer.poll(Duration.ofMillis(pollMs)).forEach(found::add);
    } while (found.size() < count && System.currentTimeMillis() < ends);
    return found;
  }

  // Each value with its delivery count.
  static String counts(List<ConsumerRecord<String, String>> records) {
    TreeMap<String, String> found = new TreeMap<>();
    records.forEach(record -> found.merge(record.value(), record.deliveryCount().map(String::valueOf).orElse("-"), (one, two) -> one + "+" + two));
    return found.toString();
  }

  static int distinct(List<ConsumerRecord<String, String>> records) {
    return new TreeSet<>(records.stream().map(ConsumerRecord::value).toList()).size();
  }
}
