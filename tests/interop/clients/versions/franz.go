// The four steps of client_versions.py by franz-go. Arguments: SERVER NAME.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var server, name = os.Args[1], os.Args[2]

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(server), kgo.DefaultProduceTopic(name))...)
	if err != nil {
		panic(err)
	}
	return made
}

func admin(within context.Context) error {
	own := client()
	defer own.Close()
	request := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 1, 1
	request.Topics = append(request.Topics, topic)
	answer, err := request.RequestWith(within, own)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(answer.Topics[0].ErrorCode)
}

func produce(within context.Context) error {
	own := client()
	defer own.Close()
	return own.ProduceSync(within, kgo.StringRecord("v"), kgo.StringRecord("v"), kgo.StringRecord("v")).FirstErr()
}

func group(within context.Context) error {
	own := client(kgo.ConsumerGroup(name), kgo.ConsumeTopics(name), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer own.Close()
	for found := 0; found < 3; {
		fetches := own.PollFetches(within)
		if err := fetches.Err(); err != nil {
			return err
		}
		found += fetches.NumRecords()
	}
	return own.CommitUncommittedOffsets(within)
}

func transaction(within context.Context) error {
	own := client(kgo.TransactionalID(name))
	defer own.Close()
	for number := 0; number < 3; number++ {
		if err := own.BeginTransaction(); err != nil {
			return err
		}
		if err := own.ProduceSync(within, kgo.StringRecord("v")).FirstErr(); err != nil {
			return err
		}
		if err := own.EndTransaction(within, kgo.TransactionEndTry(number != 1)); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{{"admin", admin}, {"produce", produce}, {"group", group}, {"transaction", transaction}} {
		within, stop := context.WithTimeout(context.Background(), 30*time.Second)
		outcome := ""
		if err := step.run(within); err != nil {
			outcome = err.Error()
		}
		stop()
		fmt.Printf("%s\t%s\n", step.name, outcome)
	}
}
