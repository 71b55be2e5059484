// A member of a group with franz-go, until SIGTERM, as confluent_member.py. Arguments: settings as JSON, topics.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	telling  sync.Mutex
	assigned = map[string]map[int32]bool{}
)

func main() {
	settings := map[string]string{}
	if err := json.Unmarshal([]byte(os.Args[1]), &settings); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	consumer, err := kgo.NewClient(append(options(settings), subscription(os.Args[2:])...)...)
	if err != nil {
		panic(err)
	}
	for ctx.Err() == nil {
		consumer.PollFetches(ctx).EachRecord(func(record *kgo.Record) {
			say("record", []any{record.Topic, record.Partition, record.Offset})
		})
	}
	if err := consumer.CommitUncommittedOffsets(context.Background()); err != nil {
		panic(err)
	}
	consumer.Close()
}

func options(settings map[string]string) []kgo.Opt {
	interval, err := strconv.Atoi(settings["auto.commit.interval.ms"])
	if err != nil {
		panic(err)
	}
	balancer := kgo.StickyBalancer() // which is "uniform" for a broker
	if settings["group.remote.assignor"] == "range" {
		balancer = kgo.RangeBalancer()
	}
	found := []kgo.Opt{
		kgo.SeedBrokers(settings["bootstrap.servers"]), kgo.ConsumerGroup(settings["group.id"]),
		kgo.ServerSideBalancer(), kgo.Balancers(balancer),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AutoCommitInterval(time.Duration(interval) * time.Millisecond),
		kgo.MetadataMinAge(time.Second), kgo.MetadataMaxAge(time.Second),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, places map[string][]int32) {
			change(places, true)
		}),
		kgo.OnPartitionsRevoked(func(ctx context.Context, consumer *kgo.Client, places map[string][]int32) {
			if err := consumer.CommitUncommittedOffsets(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			change(places, false)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, places map[string][]int32) {
			change(places, false)
		}),
	}
	if id := settings["group.instance.id"]; id != "" {
		found = append(found, kgo.InstanceID(id))
	}
	if id := settings["client.id"]; id != "" {
		found = append(found, kgo.ClientID(id))
	}
	return found
}

func subscription(topics []string) []kgo.Opt {
	found := []kgo.Opt{kgo.ConsumeTopics(topics...)}
	if strings.HasPrefix(topics[0], "^") {
		found = append(found, kgo.ConsumeRegex())
	}
	return found
}

// change tells what the member has, now that it has got or lost partitions.
func change(places map[string][]int32, has bool) {
	telling.Lock()
	for topic, partitions := range places {
		if assigned[topic] == nil {
			assigned[topic] = map[int32]bool{}
		}
		for _, partition := range partitions {
			assigned[topic][partition] = has
		}
	}
	after := told()
	telling.Unlock()
	say("assigned", after)
}

func told() [][]any {
	found := [][]any{}
	for topic, partitions := range assigned {
		for partition, has := range partitions {
			if has {
				found = append(found, []any{topic, partition})
			}
		}
	}
	return found
}

func say(what string, value any) {
	line, err := json.Marshal(map[string]any{what: value})
	if err != nil {
		panic(err)
	}
	telling.Lock()
	defer telling.Unlock()
	fmt.Println(string(line))
}
