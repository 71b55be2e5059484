// Copies the topic "in" to "out" exactly once, with franz-go's session of a group and transactions.
// Arguments: the server, the transactional id, the records of a transaction, the timeout of one in seconds.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	batch, seconds := number(os.Args[3]), number(os.Args[4])
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(os.Args[1]), kgo.TransactionalID(os.Args[2]),
		kgo.TransactionTimeout(time.Duration(seconds)*time.Second),
		kgo.ConsumerGroup("copiers"), kgo.ConsumeTopics("in"), kgo.SessionTimeout(6*time.Second),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(), kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	end(err)
	for {
		copied, err := copyRecords(session, batch)
		end(err)
		fmt.Println("copied", copied)
	}
}

// copyRecords is a transaction of so many records at most; how many were committed.
func copyRecords(session *kgo.GroupTransactSession, batch int) (int, error) {
	ctx := context.Background()
	fetches := session.PollRecords(ctx, batch)
	if err := fetches.Err(); err != nil {
		return 0, err
	}
	if err := session.Begin(); err != nil {
		return 0, err
	}
	failed := kgo.AbortingFirstErrPromise(session.Client())
	fetches.EachRecord(func(record *kgo.Record) {
		session.Produce(
			ctx,
			&kgo.Record{Topic: "out", Partition: record.Partition, Key: record.Key, Value: record.Value},
			failed.Promise(),
		)
	})
	committed, err := session.End(ctx, failed.Err() == nil)
	if !committed {
		return 0, err
	}
	return fetches.NumRecords(), err
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	end(err)
	return found
}

// end ends the program where there is an error: it is started again.
func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
