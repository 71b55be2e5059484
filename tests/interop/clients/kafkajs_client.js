// kafkajs, as conversation.py has it. Arguments: the server, and the folder with its packages.
// Its consumers are always members of a group, so there is no step that consumes.
'use strict'

const fs = require('node:fs')
const path = require('node:path')
const readline = require('node:readline')

const [server, folder] = process.argv.slice(2)
const load = (name) => require(path.join(folder, 'node_modules', name))
const { Kafka, CompressionTypes, CompressionCodecs, Partitioners, logLevel } = load('kafkajs')
CompressionCodecs[CompressionTypes.Snappy] = load('kafkajs-snappy')

const TIMEOUT_MS = 30000
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy }
const ACKS = { 0: 0, 1: 1, all: -1 }
const security = JSON.parse(process.env.INTEROP_SECURITY || '{}')

function connecting() {
  const file = (name) => (security[name] ? fs.readFileSync(security[name], 'utf8') : undefined)
  const { user: username, password, token } = security
  const mechanism = (security.mechanism || '').toLowerCase()
  const oauthBearerProvider = async () => ({ value: token })
  return {
    ...(security.authority ? { ssl: { ca: [file('authority')], cert: file('chain'), key: file('key') } } : {}),
    ...(mechanism ? { sasl: token ? { mechanism, oauthBearerProvider } : { mechanism, username, password } } : {})
  }
}

const kafka = new Kafka({
  brokers: [server], clientId: 'kafkajs', logLevel: logLevel.NOTHING, retry: { retries: 2 }, ...connecting()
})

const unpack = (text) => (text === null ? null : Buffer.from(text, 'base64'))

function unpackHeaders(pairs) {
  const headers = {}
  for (const [name, value] of pairs) {
    const before = headers[name]
    headers[name] = before === undefined ? unpack(value) : [].concat(before, [unpack(value)])
  }
  return headers
}

async function withAdmin(use) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await use(admin)
  } finally {
    await admin.disconnect()
  }
}

const steps = {
  async produce({ topic, partition, acks, codec, idempotent, records }) {
    const producer = kafka.producer({
      idempotent,
      createPartitioner: Partitioners.DefaultPartitioner,
      ...(idempotent ? { maxInFlightRequests: 1 } : {})
    })
    await producer.connect()
    try {
      const messages = records.map(([key, value, headers, timestamp]) => ({
        key: unpack(key), value: unpack(value), headers: unpackHeaders(headers), timestamp: String(timestamp), partition
      }))
      const [sent] = await producer.send({ topic, messages, acks: ACKS[acks], compression: CODECS[codec] })
      return acks === '0' ? null : Number(sent.baseOffset)
    } finally {
      await producer.disconnect()
    }
  },
  async keep_on({ topic, seconds }) {
    const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner })
    await producer.connect()
    try {
      const end = Date.now() + seconds * 1000
      let sent = 0
      for (; Date.now() < end; sent++) {
        await producer.send({ topic, messages: [{ value: 'value', partition: 0 }], acks: -1 })
        await new Promise((resolve) => setTimeout(resolve, 100))
      }
      return sent
    } finally {
      await producer.disconnect()
    }
  },
  login: () => withAdmin(async () => null),
  async group({ topic, group, count }) {
    const consumer = kafka.consumer({ groupId: group, retry: { retries: 3, restartOnFailure: async () => false } })
    await consumer.connect()
    try {
      await consumer.subscribe({ topic, fromBeginning: true })
      const found = []
      await new Promise((resolve, reject) => {
        consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
        setTimeout(resolve, TIMEOUT_MS).unref()
        const eachMessage = async ({ partition, message }) => {
          found.push([partition, Number(message.offset)])
          if (found.length === count) resolve()
        }
        consumer.run({ autoCommit: false, eachMessage }).catch(reject)
      })
      const next = new Map(found.map(([partition, offset]) => [partition, String(offset + 1)]))
      await consumer.commitOffsets([...next].map(([partition, offset]) => ({ topic, partition, offset })))
      return found
    } finally {
      await consumer.disconnect()
    }
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { do: name, ...step } = JSON.parse(line)
    let told
    try {
      told = { result: await steps[name](step) }
    } catch (error) {
      told = { error: `${error.name}: ${error.message}` }
    }
    process.stdout.write(`${JSON.stringify(told)}\n`)
  }
}

main()
