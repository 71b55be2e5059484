// Steps of client_programs.steps_told by franz-go. Arguments: SERVER NAME.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

var server, name = os.Args[1], os.Args[2]
var value = strings.Repeat("v", 1000)

// told is what the environment says, or by default.
func told(key, byDefault string) string {
	if text, ok := os.LookupEnv("INTEROP_" + key); ok {
		return text
	}
	return byDefault
}

func secured() *tls.Config {
	authority, err := os.ReadFile(told("AUTHORITY", ""))
	if err != nil {
		panic(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authority)
	if key := told("KEY", ""); key != "" {
		own, err := tls.LoadX509KeyPair(told("CHAIN", ""), key)
		if err != nil {
			panic(err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config
}

func client(options ...kgo.Opt) *kgo.Client {
	if told("AUTHORITY", "") != "" {
		options = append(options, kgo.DialTLSConfig(secured()))
	}
	user, password := told("USER", ""), told("PASSWORD", "")
	switch told("MECHANISM", "") {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: told("TOKEN", "")}.AsMechanism()))
	}
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
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for _, codec := range strings.Fields(told("CODECS", "none")) {
		own := client(kgo.ProducerBatchCompression(codecs[codec]))
		record := func() *kgo.Record { return kgo.KeyStringRecord("k", value) }
		err := own.ProduceSync(within, record(), record(), record()).FirstErr()
		own.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func group(within context.Context) error {
	own := client(kgo.ConsumerGroup(name), kgo.ConsumeTopics(name), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer own.Close()
	records, _ := strconv.Atoi(told("RECORDS", "3"))
	for found := 0; found < records; {
		fetches := own.PollFetches(within)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			if string(record.Key) != "k" || string(record.Value) != value {
				return fmt.Errorf("another record: %s", record.Key)
			}
			found++
		}
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
	steps := map[string]func(context.Context) error{
		"admin": admin, "produce": produce, "group": group, "transaction": transaction,
	}
	for _, step := range strings.Fields(told("STEPS", "admin produce group transaction")) {
		within, stop := context.WithTimeout(context.Background(), 30*time.Second)
		outcome := ""
		if err := steps[step](within); err != nil {
			outcome = strings.Join(strings.Fields(err.Error()), " ")
		}
		stop()
		fmt.Printf("%s\t%s\n", step, outcome)
	}
}
