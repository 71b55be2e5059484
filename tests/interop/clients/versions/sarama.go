// The four steps of client_versions.py by Sarama. Arguments: SERVER NAME.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"LIBRARY"
)

var servers, name = os.Args[1:2], os.Args[2]

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

func send(producer sarama.SyncProducer) error {
	_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: name, Value: sarama.StringEncoder("v")})
	return err
}

func admin() error {
	admin, err := sarama.NewClusterAdmin(servers, settings())
	if err != nil {
		return err
	}
	defer admin.Close()
	return admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false)
}

func produce() error {
	config := settings()
	config.Producer.RequiredAcks = sarama.WaitForAll
	producer, err := sarama.NewSyncProducer(servers, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	for number := 0; number < 3 && err == nil; number++ {
		err = send(producer)
	}
	return err
}

type handler struct {
	found int
	stop  context.CancelFunc
}

func (*handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		if h.found++; h.found == 3 {
			session.Commit()
			h.stop()
			return nil
		}
	}
	return nil
}

func group() error {
	group, err := sarama.NewConsumerGroup(servers, name, settings())
	if err != nil {
		return err
	}
	defer group.Close()
	within, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	h := &handler{stop: stop}
	for h.found < 3 && within.Err() == nil {
		if err := group.Consume(within, []string{name}, h); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	if h.found < 3 {
		return fmt.Errorf("%d of 3 records in 30 s", h.found)
	}
	return nil
}

func main() {
	for _, step := range []struct {
		name string
		run  func() error
	}{{"admin", admin}, {"produce", produce}, {"group", group}, {"transaction", transaction}} {
		outcome := ""
		if err := step.run(); err != nil {
			outcome = err.Error()
		}
		fmt.Printf("%s\t%s\n", step.name, outcome)
	}
}

func transaction() error {
	config := settings()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent, config.Net.MaxOpenRequests = true, 1
	config.Producer.Transaction.ID = name
	producer, err := sarama.NewSyncProducer(servers, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	for number := 0; number < 3 && err == nil; number++ {
		if err = producer.BeginTxn(); err == nil {
			err = send(producer)
		}
		if err == nil && number == 1 {
			err = producer.AbortTxn()
		} else if err == nil {
			err = producer.CommitTxn()
		}
	}
	return err
}
