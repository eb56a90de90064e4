// Stock Kafka clients of Node.js, which take calls as lines of JSON on stdin. {"do": "kafkajs.produce", ...} is answered
// by {"result": ...}, or by {"error": class, "message": ...} if the client throws.

import { createInterface } from 'node:readline'
import kafkajs from 'kafkajs'
import * as platformatic from '@platformatic/kafka'

const SECONDS = 100
const { Kafka, CompressionTypes, logLevel } = kafkajs

console.log = console.error // stdout is for answers

function within(promise, what) {
  const late = new Promise((_, reject) => setTimeout(() => reject(new Error(`no ${what}`)), SECONDS * 1000).unref())
  return Promise.race([promise, late])
}

const text = buffer => buffer?.toString() ?? null

// Return "values" as messages with the time "timestamp" (ms) or the current time.
const messagesOf = (call, time = String) =>
  call.values.map((value, n) => ({
    key: `key-${n}`,
    value,
    headers: { number: `${n}` },
    partition: call.partition,
    ...(call.timestamp ? { timestamp: time(call.timestamp) } : {})
  }))

// --- kafkajs --------------------------------------------------------------------------------------------------------

const kafka = call => new Kafka({ brokers: call.address.split(','), clientId: 'kafkajs', logLevel: logLevel.NOTHING, connectionTimeout: 60_000, ssl: tls(call), sasl: saslOf(call) })

// The SASL options of a call. A "token" of OAUTHBEARER becomes the function that kafkajs wants.
const saslOf = call => call.sasl?.token ? { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: call.sasl.token }) } : call.sasl

// The TLS options of a call whose "tls" has PEM texts: the authority "ca", and the client's "cert" and "key".
const tls = call => call.tls && { servername: 'localhost', ...call.tls }

async function using(client, work) {
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.disconnect()
  }
}

const withAdmin = work => call => using(kafka(call).admin(), admin => work(admin, call))

const members = new Map()

const forKafkajs = {
  // Produce "values" with "codec" and "acks"; the answer is [[partition, base offset], ...].
  produce: call =>
    using(kafka(call).producer({ idempotent: call.idempotent ?? false }), async producer => {
      const compression = CompressionTypes[(call.codec ?? 'none').toUpperCase()]
      const sent = await producer.send({ topic: call.topic, acks: call.acks ?? -1, compression, messages: messagesOf(call) })
      return sent.map(each => [each.partition, Number(each.baseOffset)])
    }),

  // Read "count" records as a member of "group", from the group's committed offset or from the beginning.
  read: async call => {
    const found = []
    const committed = call.committed ?? false
    const consumer = kafka(call).consumer({ groupId: call.group, readUncommitted: !committed, maxWaitTimeInMs: 200 })
    return using(consumer, async () => {
      await consumer.subscribe({ topics: [call.topic], fromBeginning: true })
      await within(
        new Promise((resolve, reject) => {
          consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
          consumer
            .run({
              eachMessage: async ({ partition, message }) => {
                found.push([partition, Number(message.offset), text(message.key), text(message.value),
                  text(message.headers.number)])
                if (found.length >= call.count) resolve()
              }
            })
            .catch(reject)
        }),
        `${call.count} messages, only ${found.length}`
      )
      return found
    })
  },

  // Join "group" as the member "name", which stays until "leave".
  join: async call => {
    const consumer = kafka(call).consumer({ groupId: call.group, heartbeatInterval: 200, maxWaitTimeInMs: 200 })
    const member = { consumer, partitions: [] }
    consumer.on(consumer.events.GROUP_JOIN, event => {
      member.partitions = event.payload.memberAssignment[call.topic] ?? []
    })
    members.set(call.name, member)
    await consumer.connect()
    await consumer.subscribe({ topics: [call.topic] })
    await consumer.run({ eachMessage: async () => {} })
  },

  share: async call => {
    const has = () => call.names.map(name => members.get(name).partitions)
    const end = Date.now() + SECONDS * 1000
    while (!has().every(each => each.length === call.partitions / call.names.length)) {
      if (Date.now() > end) throw new Error(`they have ${JSON.stringify(has())}`)
      await new Promise(resolve => setTimeout(resolve, 20))
    }
    return has()
  },

  leave: call => members.get(call.name).consumer.disconnect(),

  // Produce "values" and commit "offset" for "group" in one transaction; "abort" aborts it.
  transaction: call =>
    using(kafka(call).producer({ transactionalId: call.id, maxInFlightRequests: 1, idempotent: true }), async producer => {
      const transaction = await producer.transaction()
      await transaction.send({ topic: call.topic, messages: messagesOf(call) })
      if (call.group) {
        const partitions = [{ partition: 0, offset: `${call.offset}` }]
        await transaction.sendOffsets({ consumerGroupId: call.group, topics: [{ topic: call.topic, partitions }] })
      }
      await (call.abort ? transaction.abort() : transaction.commit())
    }),

  createTopic: withAdmin((admin, call) =>
    admin.createTopics({ topics: [{ topic: call.topic, numPartitions: call.partitions ?? 1 }] })),
  deleteTopic: withAdmin((admin, call) => admin.deleteTopics({ topics: [call.topic] })),
  listTopics: withAdmin(admin => admin.listTopics()),
  describeCluster: withAdmin(admin => admin.describeCluster()),
  listGroups: withAdmin(async admin => (await admin.listGroups()).groups.map(each => each.groupId)),
  describeGroup: withAdmin(async (admin, call) => (await admin.describeGroups([call.group])).groups[0].state),
  deleteGroup: withAdmin((admin, call) => admin.deleteGroups([call.group])),
  setGroupOffset: withAdmin((admin, call) =>
    admin.setOffsets({ groupId: call.group, topic: call.topic, partitions: [{ partition: 0, offset: `${call.offset}` }] })),
  groupOffset: withAdmin(async (admin, call) => {
    const [topic] = await admin.fetchOffsets({ groupId: call.group, topics: [call.topic] })
    return Number(topic.partitions.find(each => each.partition === 0).offset)
  }),
  topicOffsets: withAdmin((admin, call) => admin.fetchTopicOffsets(call.topic)),
  topicOffsetsByTime: withAdmin((admin, call) => admin.fetchTopicOffsetsByTimestamp(call.topic, call.time)),
  createPartitions: withAdmin((admin, call) =>
    admin.createPartitions({ topicPartitions: [{ topic: call.topic, count: call.partitions }] })),
  partitions: withAdmin(async (admin, call) =>
    (await admin.fetchTopicMetadata({ topics: [call.topic] })).topics[0].partitions.length),
  deleteRecords: withAdmin(async (admin, call) => {
    await admin.fetchTopicOffsets(call.topic) // otherwise kafkajs does not know the leader
    await admin.deleteTopicRecords({ topic: call.topic, partitions: [{ partition: 0, offset: `${call.before}` }] })
  }),
  topicConfig: withAdmin(async (admin, call) => {
    const { resources } = await admin.describeConfigs({ resources: [{ type: 2, name: call.topic }] })
    return Object.fromEntries(resources[0].configEntries.map(each => [each.configName, each.configValue]))
  }),
  setTopicConfig: withAdmin((admin, call) => {
    const configEntries = [{ name: call.name, value: call.value }]
    return admin.alterConfigs({ resources: [{ type: 2, name: call.topic, configEntries }] })
  }),
  describeAcls: withAdmin(async admin => {
    const any = { resourceType: 1, resourcePatternType: 1, operation: 1, permissionType: 1 }
    return (await admin.describeAcls(any)).resources
  })
}

// --- @platformatic/kafka --------------------------------------------------------------------------------------------

const options = call => ({ clientId: 'platformatic', bootstrapBrokers: call.address.split(','), timeout: 60_000, connectTimeout: 60_000, retries: 1 })

const { stringSerializers, stringDeserializers } = platformatic

async function closing(client, work, ...how) {
  try {
    return await work(client)
  } finally {
    await client.close(...how)
  }
}

const withPlatformaticAdmin = work => call =>
  closing(new platformatic.Admin(options(call)), admin => work(admin, call))

const member = call =>
  new platformatic.Consumer({ ...options(call), groupId: call.group, deserializers: stringDeserializers, maxWaitTime: 200 })

const withPlatformaticConsumer = work => call => closing(member(call), consumer => work(consumer, call), true)

const platformaticProducer = (call, more = {}) =>
  new platformatic.Producer({ ...options(call), serializers: stringSerializers, autocreateTopics: true, ...more })

const platformaticMessages = call => messagesOf(call, BigInt).map(each => ({ topic: call.topic, ...each }))

const forPlatformatic = {
  produce: call =>
    closing(platformaticProducer(call, { idempotent: call.idempotent ?? false }), async producer => {
      const sent = await producer.send({
        messages: platformaticMessages(call),
        acks: call.acks ?? -1,
        compression: call.codec ?? 'none'
      })
      return (sent.offsets ?? []).map(each => [each.partition, Number(each.offset)])
    }),

  read: withPlatformaticConsumer(async (consumer, call) => {
    const { READ_COMMITTED, READ_UNCOMMITTED } = platformatic.FetchIsolationLevels
    const stream = await consumer.consume({
      topics: [call.topic],
      mode: 'committed',
      fallbackMode: 'earliest',
      autocommit: false,
      isolationLevel: call.committed ? READ_COMMITTED : READ_UNCOMMITTED
    })
    const found = []
    await within(
      (async () => {
        for await (const message of stream) {
          found.push([message.partition, Number(message.offset), message.key, message.value, message.headers.get('number')])
          await message.commit()
          if (found.length >= call.count) break
        }
      })(),
      `${call.count} messages`
    )
    return found
  }),

  transaction: call =>
    closing(platformaticProducer(call, { transactionalId: call.id, idempotent: true }), async producer => {
      const transaction = await producer.beginTransaction()
      await transaction.send({ messages: platformaticMessages(call) })
      await (call.abort ? transaction.abort() : transaction.commit())
    }),

  createTopic: withPlatformaticAdmin((admin, call) =>
    admin.createTopics({ topics: [call.topic], partitions: call.partitions ?? 1, replicas: -1 }).then(() => null)),
  deleteTopic: withPlatformaticAdmin((admin, call) => admin.deleteTopics({ topics: [call.topic] })),
  listTopics: withPlatformaticAdmin(admin => admin.listTopics()),
  listGroups: withPlatformaticAdmin(async admin => [...(await admin.listGroups()).keys()]),
  describeGroup: withPlatformaticAdmin(async (admin, call) =>
    (await admin.describeGroups({ groups: [call.group] })).get(call.group).state),
  deleteGroup: withPlatformaticAdmin((admin, call) => admin.deleteGroups({ groups: [call.group] })),
  groupOffset: withPlatformaticAdmin(async (admin, call) => {
    const [group] = await admin.listConsumerGroupOffsets({ groups: [call.group] })
    return Number(group.topics.find(each => each.name === call.topic).partitions[0].committedOffset)
  }),
  setGroupOffset: withPlatformaticAdmin((admin, call) => {
    const partitionOffsets = [{ partition: 0, offset: BigInt(call.offset) }]
    return admin.alterConsumerGroupOffsets({ groupId: call.group, topics: [{ name: call.topic, partitionOffsets }] })
  }),
  createPartitions: withPlatformaticAdmin((admin, call) =>
    admin.createPartitions({ topics: [{ name: call.topic, count: call.partitions, assignments: null }] })),
  partitions: withPlatformaticAdmin(async (admin, call) =>
    (await admin.metadata({ topics: [call.topic] })).topics.get(call.topic).partitions.length),
  deleteRecords: withPlatformaticAdmin((admin, call) =>
    admin.deleteRecords({ topics: [{ name: call.topic, partitions: [{ partition: 0, offset: BigInt(call.before) }] }] })
      .then(() => null)),
  topicConfig: withPlatformaticAdmin(async (admin, call) => {
    const [found] = await admin.describeConfigs({ resources: [{ resourceType: 2, resourceName: call.topic }] })
    return Object.fromEntries(found.configs.map(each => [each.name, each.value]))
  }),
  setTopicConfig: withPlatformaticAdmin((admin, call) => {
    const configs = [{ name: call.name, configOperation: 0, value: call.value }]
    return admin.incrementalAlterConfigs({ resources: [{ resourceType: 2, resourceName: call.topic, configs }] })
  }),
  logDirs: withPlatformaticAdmin(async (admin, call) => {
    const [broker] = await admin.describeLogDirs({ topics: [{ name: call.topic, partitions: [0] }] })
    return broker.results[0].topics.map(each => each.name)
  }),
  quotas: withPlatformaticAdmin(admin => admin.describeClientQuotas({ components: [], strict: false }))
}

// --- calls and answers ----------------------------------------------------------------------------------------------

const clients = { kafkajs: forKafkajs, platformatic: forPlatformatic }

async function answer(call) {
  try {
    const [client, name] = call.do.split('.')
    return { result: (await clients[client][name](call)) ?? null }
  } catch (error) {
    // kafkajs has the protocol's error in "type"; @platformatic/kafka keeps it in the innermost of its nested errors,
    // the last one of several attempts: the first may have asked a broker that is not the controller.
    let cause = error
    while (cause.cause ?? cause.errors?.at(-1)) cause = cause.cause ?? cause.errors.at(-1)
    return { error: cause.apiId ?? cause.type ?? cause.name, message: `${error.message}: ${cause.message}` }
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await answer(JSON.parse(line))) + '\n')
}
