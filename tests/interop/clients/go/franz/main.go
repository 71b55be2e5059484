// franz-go, as conversation.py has it. Argument: the server.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"interop/conversation"
)

var server = os.Args[1]
var security = conversation.Connecting()

func client(options ...kgo.Opt) *kgo.Client {
	options = append(options, kgo.SeedBrokers(server))
	if config := security.TLS(); config != nil {
		options = append(options, kgo.DialTLSConfig(config))
	}
	switch security.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: security.User, Pass: security.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: security.User, Pass: security.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: security.User, Pass: security.Password}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: security.Token}.AsMechanism()))
	}
	made, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	return made
}

func main() { conversation.Serve(do) }

func do(step *conversation.Step) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), conversation.Timeout)
	defer cancel()
	switch step.Do {
	case "produce":
		return produce(ctx, step)
	case "consume":
		return consume(ctx, step)
	case "group":
		return group(ctx, step)
	}
	if step.Do == "keep_on" {
		return keepOn(step)
	}
	if step.Do == "login" {
		own := client()
		defer own.Close()
		return nil, own.Ping(ctx)
	}
	return nil, fmt.Errorf("no step %q", step.Do)
}

func produce(ctx context.Context, step *conversation.Step) (any, error) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	acks := map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}
	options := []kgo.Opt{
		kgo.RequiredAcks(acks[step.Acks]),
		kgo.ProducerBatchCompression(codecs[step.Codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(100 * time.Millisecond),
	}
	if !step.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	producer := client(options...)
	defer producer.Close()
	var records []*kgo.Record
	for _, each := range step.Records() {
		record := &kgo.Record{
			Topic: step.Topic, Partition: step.Partition, Key: each.Key, Value: each.Value,
			Timestamp: time.UnixMilli(each.Timestamp),
		}
		for _, header := range each.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: header.Name, Value: header.Value})
		}
		records = append(records, record)
	}
	first, err := producer.ProduceSync(ctx, records...).First()
	if err != nil || step.Acks == "0" {
		return nil, err
	}
	return first.Offset, nil
}

func keepOn(step *conversation.Step) (any, error) {
	end := time.Now().Add(time.Duration(step.Seconds * float64(time.Second)))
	producer := client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer producer.Close()
	sent := 0
	for time.Now().Before(end) {
		ctx, cancel := context.WithTimeout(context.Background(), conversation.Timeout)
		err := producer.ProduceSync(ctx, &kgo.Record{Topic: step.Topic, Value: []byte("value")}).FirstErr()
		cancel()
		if err != nil {
			return nil, err
		}
		sent++
		time.Sleep(100 * time.Millisecond)
	}
	return sent, nil
}

func consume(ctx context.Context, step *conversation.Step) (any, error) {
	place := map[string]map[int32]kgo.Offset{step.Topic: {step.Partition: kgo.NewOffset().At(step.Offset)}}
	consumer := client(kgo.ConsumePartitions(place))
	defer consumer.Close()
	var found []conversation.Record
	for len(found) < step.Count {
		fetches := consumer.PollRecords(ctx, step.Count-len(found))
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		for _, each := range fetches.Records() {
			record := conversation.Record{
				Offset: each.Offset, Key: each.Key, Value: each.Value, Timestamp: each.Timestamp.UnixMilli(),
			}
			for _, header := range each.Headers {
				record.Headers = append(record.Headers, conversation.Header{Name: header.Key, Value: header.Value})
			}
			found = append(found, record)
		}
	}
	return conversation.Packed(found), nil
}

func group(ctx context.Context, step *conversation.Step) (any, error) {
	consumer := client(
		kgo.ConsumerGroup(step.Group), kgo.ConsumeTopics(step.Topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	defer consumer.Close()
	found := [][2]int64{}
	for len(found) < step.Count {
		fetches := consumer.PollRecords(ctx, step.Count-len(found))
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		for _, each := range fetches.Records() {
			found = append(found, [2]int64{int64(each.Partition), each.Offset})
		}
	}
	return found, consumer.CommitUncommittedOffsets(ctx)
}
