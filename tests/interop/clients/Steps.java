// Steps of client_programs.steps_told by any kafka-clients from 2.1 on. Arguments: SERVER NAME.
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
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
  static final String VALUE = value();

  public static void main(String[] args) {
    server = args[0];
    name = args[1];
    Map<String, Step> steps = new HashMap<>();
    steps.put("admin", Steps::admin);
    steps.put("produce", Steps::produce);
    steps.put("group", Steps::group);
    steps.put("transaction", Steps::transaction);
    for (String step : told("STEPS", "admin produce group transaction").split(" ")) step(step, steps.get(step));
    System.exit(0);
  }

  static String told(String key, String byDefault) {
    return System.getenv().getOrDefault("INTEROP_" + key, byDefault);
  }

  static String value() {
    char[] value = new char[1000];
    Arrays.fill(value, 'v');
    return new String(value);
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

  static Map<String, Object> settings(Object... more) throws Exception {
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", server);
    settings.put("request.timeout.ms", 10000);
    settings.put("default.api.timeout.ms", 20000);
    settings.put("security.protocol", told("PROTOCOL", "PLAINTEXT"));
    if (!told("AUTHORITY", "").isEmpty()) {
      settings.put("ssl.truststore.type", "PEM");
      settings.put("ssl.truststore.location", told("AUTHORITY", ""));
    }
    if (!told("KEY", "").isEmpty()) {
      settings.put("ssl.keystore.type", "PEM");
      settings.put("ssl.keystore.key", new String(Files.readAllBytes(Paths.get(told("KEY", "")))));
      settings.put("ssl.keystore.certificate.chain", new String(Files.readAllBytes(Paths.get(told("CHAIN", "")))));
    }
    String mechanism = told("MECHANISM", "");
    if (!mechanism.isEmpty()) {
      settings.put("sasl.mechanism", mechanism);
      settings.put("sasl.jaas.config", "org.apache.kafka.common.security." + module(mechanism));
    }
    for (int at = 0; at < more.length; at += 2) settings.put((String) more[at], more[at + 1]);
    return settings;
  }

  static String module(String mechanism) {
    String account = String.format("required username=\"%s\" password=\"%s\";", told("USER", ""), told("PASSWORD", ""));
    switch (mechanism) {
      case "PLAIN":
        return "plain.PlainLoginModule " + account;
      case "OAUTHBEARER": // it makes a token of its own, without a signature
        return "oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\"" + told("USER", "")
            + "\" unsecuredLoginLifetimeSeconds=\"" + told("LIVES", "3600") + "\";";
      default:
        return "scram.ScramLoginModule " + account;
    }
  }

  static void admin() throws Exception {
    try (AdminClient admin = AdminClient.create(settings())) {
      admin.createTopics(Collections.singleton(new NewTopic(name, 1, (short) 1))).all().get(20, TimeUnit.SECONDS);
    }
  }

  static KafkaProducer<String, String> producer(Object... more) throws Exception {
    Map<String, Object> settings = settings(more);
    settings.remove("default.api.timeout.ms");
    settings.put("max.block.ms", 20000);
    settings.put("delivery.timeout.ms", 20000);
    return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
  }

  static void produce() throws Exception {
    for (String codec : told("CODECS", "none").split(" ")) {
      try (KafkaProducer<String, String> producer = producer("acks", "all", "compression.type", codec)) {
        for (int number = 0; number < 3; number++) producer.send(new ProducerRecord<>(name, "k", VALUE)).get();
      }
    }
  }

  static void group() throws Exception {
    int records = Integer.parseInt(told("RECORDS", "3"));
    Map<String, Object> settings =
        settings("group.id", name, "auto.offset.reset", "earliest", "enable.auto.commit", false);
    try (KafkaConsumer<String, String> consumer =
        new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      consumer.subscribe(Collections.singleton(name));
      long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
      for (int found = 0; found < records; ) {
        if (System.nanoTime() > end) throw new IllegalStateException(found + " of " + records + " records in 30 s");
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
          if (!"k".equals(record.key()) || !VALUE.equals(record.value())) throw new IllegalStateException("another");
          found++;
        }
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
