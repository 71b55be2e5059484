// The steps of client_versions.py by kafka-go, which has no transactions. Arguments: SERVER NAME.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
)

var server, name = os.Args[1], os.Args[2]

func admin(within context.Context) error {
	client := &kafka.Client{Addr: kafka.TCP(server)}
	topics := []kafka.TopicConfig{{Topic: name, NumPartitions: 1, ReplicationFactor: 1}}
	answer, err := client.CreateTopics(within, &kafka.CreateTopicsRequest{Topics: topics})
	if err != nil {
		return err
	}
	return answer.Errors[name]
}

func produce(within context.Context) error {
	writer := &kafka.Writer{Addr: kafka.TCP(server), Topic: name, RequiredAcks: kafka.RequireAll}
	defer writer.Close()
	message := kafka.Message{Key: []byte("k"), Value: []byte("v")}
	return writer.WriteMessages(within, message, message, message)
}

func group(within context.Context) error {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{server}, Topic: name, GroupID: name, StartOffset: kafka.FirstOffset,
	})
	defer reader.Close()
	for number := 0; number < 3; number++ {
		message, err := reader.FetchMessage(within)
		if err != nil {
			return err
		}
		if err := reader.CommitMessages(within, message); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{{"admin", admin}, {"produce", produce}, {"group", group}} {
		within, stop := context.WithTimeout(context.Background(), 30*time.Second)
		outcome := ""
		if err := step.run(within); err != nil {
			outcome = err.Error()
		}
		stop()
		fmt.Printf("%s\t%s\n", step.name, outcome)
	}
	fmt.Println("transaction\t-")
}
