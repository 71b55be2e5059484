// Sarama, as conversation.py has it. Argument: the server.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"interop/conversation"
)

var servers = os.Args[1:2]

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Return.Errors = true
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	return config
}

func main() { conversation.Serve(do) }

func do(step *conversation.Step) (any, error) {
	switch step.Do {
	case "produce":
		return produce(step)
	case "consume":
		return consume(step)
	case "group":
		return group(step)
	}
	client, err := sarama.NewClient(servers, settings())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	switch step.Do {
	case "offset_for_time":
		found, err := client.GetOffset(step.Topic, step.Partition, step.Time)
		if err != nil || found < 0 {
			return nil, err
		}
		return found, nil
	case "ends":
		oldest, err := client.GetOffset(step.Topic, step.Partition, sarama.OffsetOldest)
		if err != nil {
			return nil, err
		}
		newest, err := client.GetOffset(step.Topic, step.Partition, sarama.OffsetNewest)
		return []int64{oldest, newest}, err
	}
	return nil, fmt.Errorf("no step %q", step.Do)
}

func produce(step *conversation.Step) (any, error) {
	config := settings()
	config.Producer.RequiredAcks = map[string]sarama.RequiredAcks{
		"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll,
	}[step.Acks]
	config.Producer.Compression = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}[step.Codec]
	config.Producer.Flush.Frequency = 100 * time.Millisecond
	config.Producer.Idempotent = step.Idempotent
	if step.Idempotent {
		config.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer(servers, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for _, each := range step.Records() {
		message := &sarama.ProducerMessage{
			Topic: step.Topic, Partition: step.Partition, Timestamp: time.UnixMilli(each.Timestamp),
		}
		if each.Key != nil {
			message.Key = sarama.ByteEncoder(each.Key)
		}
		if each.Value != nil {
			message.Value = sarama.ByteEncoder(each.Value)
		}
		for _, header := range each.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.Name), Value: header.Value})
		}
		messages = append(messages, message)
	}
	if err := producer.SendMessages(messages); err != nil {
		return nil, err
	}
	if step.Acks == "0" {
		return nil, nil
	}
	return messages[0].Offset, nil
}

func consume(step *conversation.Step) (any, error) {
	consumer, err := sarama.NewConsumer(servers, settings())
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(step.Topic, step.Partition, step.Offset)
	if err != nil {
		return nil, err
	}
	defer partition.Close()
	var found []conversation.Record
	for len(found) < step.Count {
		select {
		case each := <-partition.Messages():
			record := conversation.Record{
				Offset: each.Offset, Key: each.Key, Value: each.Value, Timestamp: each.Timestamp.UnixMilli(),
			}
			for _, header := range each.Headers {
				record.Headers = append(record.Headers, conversation.Header{Name: string(header.Key), Value: header.Value})
			}
			found = append(found, record)
		case err := <-partition.Errors():
			return nil, err
		case <-time.After(conversation.Timeout):
			return nil, fmt.Errorf("%d of %d records", len(found), step.Count)
		}
	}
	return conversation.Packed(found), nil
}

// member collects the places of count records, and ends its session then.
type member struct {
	count int
	found [][2]int64
	lock  sync.Mutex
	end   context.CancelFunc
}

func (*member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*member) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case each, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			m.lock.Lock()
			if len(m.found) < m.count {
				m.found = append(m.found, [2]int64{int64(each.Partition), each.Offset})
				session.MarkMessage(each, "")
			}
			if len(m.found) == m.count {
				m.end()
			}
			m.lock.Unlock()
		case <-session.Context().Done():
			return nil
		}
	}
}

func group(step *conversation.Step) (any, error) {
	config := settings()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	group, err := sarama.NewConsumerGroup(servers, step.Group, config)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	ctx, cancel := context.WithTimeout(context.Background(), conversation.Timeout)
	defer cancel()
	reader := &member{count: step.Count, end: cancel}
	err = group.Consume(ctx, []string{step.Topic}, reader)
	return reader.found, err
}
