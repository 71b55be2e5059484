// Prints the configuration keys of the Kafka on the class path, a line of JSON each; kafka_keys.py runs it.
// Values are those of Kafka's own definitions, by name: topic keys, broker keys, group keys, client metrics keys.

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Function;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;

public class KafkaKeys {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, String> MODES = DynamicBrokerConfig.dynamicConfigUpdateModes();

    public static void main(String[] arguments) throws Exception {
        print("topic", LogConfig.configDefCopy().configKeys(),
            name -> Optional.ofNullable(ServerTopicConfigSynonyms.TOPIC_CONFIG_SYNONYMS.get(name)));
        print("broker", AbstractKafkaConfig.CONFIG_DEF.configKeys(), Optional::of);
        print("group", GroupConfig.CONFIG_DEF.configKeys(),
            name -> GroupConfig.ALL_GROUP_CONFIG_SYNONYMS.getOrDefault(name, Optional.empty()));
        print("client_metrics", ClientMetricsConfigs.configDef().configKeys(), name -> Optional.empty());
    }

    // `brokerKey` is the broker key with which the synonyms of a key begin.
    private static void print(String resource, Map<String, ConfigDef.ConfigKey> keys,
                              Function<String, Optional<String>> brokerKey) throws Exception {
        for (ConfigDef.ConfigKey key : new TreeMap<>(keys).values()) {
            if (key.internalConfig) continue; // never described
            List<String> synonyms =
                brokerKey.apply(key.name).map(name -> DynamicBrokerConfig.brokerConfigSynonyms(name, true)).orElse(List.of());
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("resource", resource);
            line.put("name", key.name);
            line.put("type", key.type.name());
            line.put("default", key.hasDefault() && key.defaultValue != null && key.type != ConfigDef.Type.PASSWORD
                ? ConfigDef.convertToString(key.defaultValue, key.type) : null);
            if (resource.equals("broker") && DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS.contains(key.name))
                line.put("dynamic", MODES.getOrDefault(key.name, "unknown"));
            boolean isItsOwn = resource.equals("broker") && synonyms.equals(List.of(key.name));
            if (!synonyms.isEmpty() && !isItsOwn) line.put("synonyms", synonyms);
            line.put("doc", key.documentation);
            System.out.println(JSON.writeValueAsString(line));
        }
    }
}
