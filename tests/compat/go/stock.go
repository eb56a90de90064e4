// Package main runs franz-go for the tests and takes calls as lines of JSON on stdin.
//
// {"do": NAME, ...} is answered by {"result": ...} or {"error": ..., "message": ...}. NAME is one of `calls` below.
// "versions" {API key: version} gives the newest version of each API that the client may use; it uses no other APIs.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const patience = 100 * time.Second

type call struct {
	Do        string
	Address   string
	Versions  map[int16]int16
	Key       int16           // the API key
	Fields    json.RawMessage // the request's fields, by kmsg's names
	Topic     string
	Partition int32
	Values    []string
	Timestamp int64 // ms
	ID        string
	End       string // how to end a transaction: "commit", "abort" or "" to leave it open
	Group     string
	Count     int
	Heartbeat int64  // ms
	CA        string // the authority as PEM, if the address speaks TLS
	Identity  string // the client's certificate and key as PEM, if it has one
	Mechanism string // of SASL, if the address asks who the client is
	User      string
	Password  string
	Token     string // of OAUTHBEARER
	Spread    int32  // the number of partitions that the values go to in turn, from partition 0; 0: all to Partition
	Name      string // of a producer that stays open between calls
	Committed bool   // whether to read only records of committed transactions
}

var calls = map[string]func(context.Context, call) (any, error){
	"ask": ask, "route": route, "produce": produce, "produceOn": produceOn, "closeProducer": closeProducer, "transact": transact, "read": read,
}

func main() {
	questions, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	questions.Buffer(nil, 1<<20)
	for questions.Scan() {
		if err := answers.Encode(answer(questions.Bytes())); err != nil {
			panic(err)
		}
	}
}

func answer(line []byte) map[string]any {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var asked call
	if err := json.Unmarshal(line, &asked); err != nil {
		return map[string]any{"error": "json", "message": err.Error()}
	}
	result, err := calls[asked.Do](ctx, asked)
	if err != nil {
		return map[string]any{"error": fmt.Sprintf("%T", err), "message": err.Error()}
	}
	return map[string]any{"result": result}
}

func client(asked call, more ...kgo.Opt) (*kgo.Client, error) {
	versions := new(kversion.Versions)
	for key, version := range asked.Versions {
		versions.SetMaxKeyVersion(key, version)
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(asked.Address, ",")...),
		kgo.MaxVersions(versions),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(10 * time.Millisecond),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	}
	if asked.CA != "" {
		authorities := x509.NewCertPool()
		authorities.AppendCertsFromPEM([]byte(asked.CA))
		config := &tls.Config{RootCAs: authorities}
		if asked.Identity != "" {
			pair, err := tls.X509KeyPair([]byte(asked.Identity), []byte(asked.Identity))
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{pair}
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	switch asked.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: asked.User, Pass: asked.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: asked.User, Pass: asked.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: asked.User, Pass: asked.Password}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: asked.Token}.AsMechanism()))
	}
	return kgo.NewClient(append(options, more...)...)
}

// ask sends one request with the given fields to the address and returns its answer, by kmsg's names.
func ask(ctx context.Context, asked call) (any, error) {
	return request(asked, func(c *kgo.Client, r kmsg.Request) (kmsg.Response, error) {
		return c.SeedBrokers()[0].Request(ctx, r)
	})
}

// route sends one request to the broker that franz-go chooses, such as the controller, and returns its answer.
func route(ctx context.Context, asked call) (any, error) {
	return request(asked, func(c *kgo.Client, r kmsg.Request) (kmsg.Response, error) {
		return c.Request(ctx, r)
	})
}

func request(asked call, send func(*kgo.Client, kmsg.Request) (kmsg.Response, error)) (any, error) {
	c, err := client(asked)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	request := kmsg.RequestForKey(asked.Key)
	if withDefaults, ok := request.(interface{ Default() }); ok {
		withDefaults.Default()
	}
	if err := json.Unmarshal(asked.Fields, request); err != nil {
		return nil, err
	}
	return send(c, request)
}

// produce writes the values in order, as an idempotent producer.
func produce(ctx context.Context, asked call) (any, error) {
	c, err := client(asked)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return nil, c.ProduceSync(ctx, records(asked)...).FirstErr()
}

// producers are those of produceOn, by name.
var producers = map[string]*kgo.Client{}

// produceOn writes the values in order with the producer "name" and returns their offsets.
func produceOn(ctx context.Context, asked call) (any, error) {
	if producers[asked.Name] == nil {
		c, err := client(asked)
		if err != nil {
			return nil, err
		}
		producers[asked.Name] = c
	}
	written := records(asked)
	err := producers[asked.Name].ProduceSync(ctx, written...).FirstErr()
	var offsets []int64
	for _, record := range written {
		offsets = append(offsets, record.Offset)
	}
	return offsets, err
}

// closeProducer closes the producer "name".
func closeProducer(_ context.Context, asked call) (any, error) {
	producers[asked.Name].Close()
	delete(producers, asked.Name)
	return nil, nil
}

func records(asked call) []*kgo.Record {
	var made []*kgo.Record
	for n, value := range asked.Values {
		partition := asked.Partition
		if asked.Spread > 0 {
			partition = int32(n) % asked.Spread
		}
		made = append(made, &kgo.Record{
			Topic: asked.Topic, Partition: partition, Timestamp: time.UnixMilli(asked.Timestamp),
			Key: fmt.Appendf(nil, "k%d", n), Value: []byte(value),
		})
	}
	return made
}

// transact writes the values in a transaction of the transactional id and returns [producer id, producer epoch].
func transact(ctx context.Context, asked call) (any, error) {
	c, err := client(asked, kgo.TransactionalID(asked.ID))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.BeginTransaction(); err != nil {
		return nil, err
	}
	if err := c.ProduceSync(ctx, records(asked)...).FirstErr(); err != nil {
		return nil, err
	}
	id, epoch, err := c.ProducerID(ctx)
	if err == nil && asked.End != "" {
		err = c.EndTransaction(ctx, kgo.TransactionEndTry(asked.End == "commit"))
	}
	return []any{id, epoch}, err
}

// read joins the group, reads "count" records, commits their offsets and returns their values.
func read(ctx context.Context, asked call) (any, error) {
	heartbeat := time.Duration(asked.Heartbeat) * time.Millisecond
	isolation := kgo.ReadUncommitted()
	if asked.Committed {
		isolation = kgo.ReadCommitted()
	}
	c, err := client(
		asked, kgo.FetchIsolationLevel(isolation), kgo.ConsumerGroup(asked.Group), kgo.ConsumeTopics(asked.Topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(heartbeat),
	)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var values []string
	for len(values) < asked.Count {
		fetched := c.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			return nil, err
		}
		fetched.EachRecord(func(each *kgo.Record) { values = append(values, string(each.Value)) })
	}
	time.Sleep(5 * heartbeat)
	return values, c.CommitUncommittedOffsets(ctx)
}
