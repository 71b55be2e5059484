import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Comparator;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Copies the topic "in" to "out" exactly once with Flink, whose sink commits a transaction with each checkpoint.
 * Arguments: the server, the prefix of transactional ids, the timeout of transactions in ms, the folder of checkpoints,
 * and the records that are read together.
 * It goes on at the last checkpoint that is there.
 */
public final class FlinkCopier {
  private static final int CHECKPOINT_MS = 300;

  private FlinkCopier() {}

  public static void main(String[] arguments) throws Exception {
    Path checkpoints = Path.of(arguments[3]);
    Configuration config = new Configuration();
    config.set(CheckpointingOptions.CHECKPOINT_STORAGE, "filesystem");
    config.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, checkpoints.toUri().toString());
    config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(CHECKPOINT_MS));
    config.set(
        CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
    last(checkpoints).ifPresent(found -> config.set(StateRecoveryOptions.SAVEPOINT_PATH, found.toUri().toString()));
    StreamExecutionEnvironment flink = StreamExecutionEnvironment.getExecutionEnvironment(config);
    flink.setParallelism(2);
    KafkaSource<String> source =
        KafkaSource.<String>builder()
            .setBootstrapServers(arguments[0])
            .setTopics("in")
            .setGroupId("copiers")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .setProperty("max.poll.records", arguments[4])
            .build();
    KafkaSink<String> sink =
        KafkaSink.<String>builder()
            .setBootstrapServers(arguments[0])
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(arguments[1])
            .setProperty("transaction.timeout.ms", arguments[2])
            .setRecordSerializer(
                KafkaRecordSerializationSchema.<String>builder()
                    .setTopic("out")
                    .setValueSerializationSchema(new SimpleStringSchema())
                    .build())
            .build();
    int together = Math.max(1, Integer.parseInt(arguments[4]) / 100);
    flink
        .fromSource(source, WatermarkStrategy.noWatermarks(), "in")
        .map(value -> slowly(value, together))
        .returns(String.class)
        .sinkTo(sink);
    flink.execute();
  }

  /** Not all of the topic is to be copied between two checkpoints: wait a moment at one of so many records. */
  private static String slowly(String value, int together) throws InterruptedException {
    if (Integer.parseInt(value) % together == 0) {
      Thread.sleep(1);
    }
    return value;
  }

  /** The newest checkpoint that was completed, of this or an earlier process. */
  private static Optional<Path> last(Path checkpoints) throws IOException {
    if (!Files.exists(checkpoints)) {
      return Optional.empty();
    }
    try (Stream<Path> found = Files.walk(checkpoints)) {
      return found
          .filter(path -> path.endsWith("_metadata"))
          .max(Comparator.comparing(path -> path.toFile().lastModified()))
          .map(Path::getParent);
    }
  }
}
