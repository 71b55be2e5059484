// Package conversation is what conversation.py says, for programs in Go.
package conversation

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Timeout is what a client may take for one step.
const Timeout = 30 * time.Second

// Security says how to connect; what is empty is absent.
type Security struct {
	Protocol  string `json:"protocol"`
	Authority string `json:"authority"`
	Chain     string `json:"chain"`
	Key       string `json:"key"`
	Mechanism string `json:"mechanism"`
	User      string `json:"user"`
	Password  string `json:"password"`
	Token     string `json:"token"`
}

// Connecting is what the environment says.
func Connecting() Security {
	var security Security
	if text, ok := os.LookupEnv("INTEROP_SECURITY"); ok {
		if err := json.Unmarshal([]byte(text), &security); err != nil {
			panic(err)
		}
	}
	return security
}

// TLS is nil where there is none.
func (security *Security) TLS() *tls.Config {
	if security.Authority == "" {
		return nil
	}
	authority, err := os.ReadFile(security.Authority)
	if err != nil {
		panic(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authority)
	if security.Key != "" {
		own, err := tls.LoadX509KeyPair(security.Chain, security.Key)
		if err != nil {
			panic(err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config
}

// Header is one header of a record; a nil value is null.
type Header struct {
	Name  string
	Value []byte
}

// Record is one record; nil is null, an empty slice is not.
type Record struct {
	Offset     int64
	Key, Value []byte
	Headers    []Header
	Timestamp  int64
}

// Step is what is asked for.
type Step struct {
	Do         string  `json:"do"`
	Topic      string  `json:"topic"`
	Partition  int32   `json:"partition"`
	Acks       string  `json:"acks"`
	Codec      string  `json:"codec"`
	Idempotent bool    `json:"idempotent"`
	Packed     [][]any `json:"records"`
	Offset     int64   `json:"offset"`
	Count      int     `json:"count"`
	Group      string  `json:"group"`
	Seconds    float64 `json:"seconds"`
}

// Records are those that a step has to produce.
func (step *Step) Records() []Record {
	var records []Record
	for _, packed := range step.Packed {
		record := Record{Key: unpack(packed[0]), Value: unpack(packed[1]), Timestamp: int64(packed[3].(float64))}
		for _, header := range packed[2].([]any) {
			pair := header.([]any)
			record.Headers = append(record.Headers, Header{pair[0].(string), unpack(pair[1])})
		}
		records = append(records, record)
	}
	return records
}

// Packed are records that were consumed, as a result.
func Packed(records []Record) [][]any {
	result := [][]any{}
	for _, record := range records {
		headers := [][]any{}
		for _, header := range record.Headers {
			headers = append(headers, []any{header.Name, pack(header.Value)})
		}
		result = append(result, []any{record.Offset, pack(record.Key), pack(record.Value), headers, record.Timestamp})
	}
	return result
}

func unpack(text any) []byte {
	if text == nil {
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(text.(string))
	if err != nil {
		panic(err)
	}
	if data == nil {
		data = []byte{}
	}
	return data
}

func pack(data []byte) any {
	if data == nil {
		return nil
	}
	return base64.StdEncoding.EncodeToString(data)
}

// Serve does what standard input asks for until it ends.
func Serve(do func(*Step) (any, error)) {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var step Step
		told := map[string]any{}
		err = json.Unmarshal(line, &step)
		if err == nil {
			told["result"], err = do(&step)
		}
		if err != nil {
			told = map[string]any{"error": fmt.Sprintf("%T: %v", err, err)}
		}
		answer, err := json.Marshal(told)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(answer))
	}
}
