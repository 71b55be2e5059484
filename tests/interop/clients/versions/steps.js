// Steps of client_programs.steps_told by a client in JavaScript. Arguments: SERVER NAME LIBRARY, in the folder of its packages.
'use strict'

const fs = require('node:fs')
const path = require('node:path')

const [server, name, library] = process.argv.slice(2)
const told = (key, byDefault) => process.env[`INTEROP_${key}`] || byDefault
const VALUE = 'v'.repeat(1000)
const load = (module) => import(require.resolve(module, { paths: [process.cwd()] }))
const SECONDS = 30

function within (promise) {
  const late = new Promise((resolve, reject) => setTimeout(() => reject(new Error(`no end in ${SECONDS} s`)), SECONDS * 1000))
  return Promise.race([promise, late])
}

// How kafkajs connects, as the environment says.
function connecting () {
  const file = (key) => (told(key) ? fs.readFileSync(told(key), 'utf8') : undefined)
  const mechanism = told('MECHANISM', '').toLowerCase()
  const login = told('TOKEN')
    ? { mechanism, oauthBearerProvider: async () => ({ value: told('TOKEN') }) }
    : { mechanism, username: told('USER'), password: told('PASSWORD') }
  return {
    ...(told('AUTHORITY') ? { ssl: { ca: [file('AUTHORITY')], cert: file('CHAIN'), key: file('KEY') } } : {}),
    ...(mechanism ? { sasl: login } : {})
  }
}

async function kafkajs () {
  const required = (module) => require(path.join(process.cwd(), 'node_modules', module))
  const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = required('kafkajs')
  const kafka = new Kafka({
    brokers: [server], clientId: 'steps', logLevel: logLevel.NOTHING, retry: { retries: 3 }, ...connecting()
  })
  const codecs = told('CODECS', 'none').split(' ')
  if (codecs.includes('snappy')) CompressionCodecs[CompressionTypes.Snappy] = required('kafkajs-snappy')
  const types = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy }
  const message = { topic: name, messages: [{ key: 'k', value: VALUE }] }
  return {
    async admin () {
      const admin = kafka.admin()
      await admin.connect()
      await admin.createTopics({ topics: [{ topic: name, numPartitions: 1 }] })
      await admin.disconnect()
    },
    async produce () {
      const producer = kafka.producer()
      await producer.connect()
      for (const codec of codecs) {
        for (let number = 0; number < 3; number++) {
          await producer.send({ acks: -1, compression: types[codec], ...message })
        }
      }
      await producer.disconnect()
    },
    async group () {
      const consumer = kafka.consumer({ groupId: name })
      await consumer.connect()
      await consumer.subscribe({ topic: name, topics: [name], fromBeginning: true })
      let found = 0
      await new Promise((resolve, reject) => {
        consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
        const eachMessage = async ({ message: { key, value } }) => {
          if (String(key) !== 'k' || String(value) !== VALUE) reject(new Error('another record'))
          if (++found === Number(told('RECORDS', '3'))) resolve()
        }
        consumer.run({ eachMessage }).catch(reject)
      })
      await consumer.disconnect()
    },
    async transaction () {
      const producer = kafka.producer({ transactionalId: name, maxInFlightRequests: 1, idempotent: true })
      await producer.connect()
      for (let number = 0; number < 3; number++) {
        const transaction = await producer.transaction()
        await transaction.send(message)
        await (number === 1 ? transaction.abort() : transaction.commit())
      }
      await producer.disconnect()
    }
  }
}

async function platformatic () {
  const { Admin, Consumer, Producer, stringSerializers, stringDeserializers } = await load('@platformatic/kafka')
  const common = { clientId: 'steps', bootstrapBrokers: [server], retries: 3 }
  const messages = [{ topic: name, key: 'k', value: 'v' }]
  return {
    async admin () {
      const admin = new Admin(common)
      await admin.createTopics({ topics: [name], partitions: 1, replicas: 1 })
      await admin.close()
    },
    async produce () {
      const producer = new Producer({ ...common, serializers: stringSerializers })
      for (let number = 0; number < 3; number++) await producer.send({ messages, acks: -1 })
      await producer.close()
    },
    async group () {
      const consumer = new Consumer({ ...common, groupId: name, deserializers: stringDeserializers })
      const stream = await consumer.consume({ topics: [name], mode: 'earliest', autocommit: false })
      let found = 0
      for await (const message of stream) {
        await message.commit()
        if (++found === 3) break
      }
      await consumer.close(true)
    },
    async transaction () {
      if (!('beginTransaction' in Producer.prototype)) return '-'
      const producer = new Producer({ ...common, transactionalId: name, idempotent: true, serializers: stringSerializers })
      for (let number = 0; number < 3; number++) {
        const transaction = await producer.beginTransaction()
        await transaction.send({ messages, acks: -1 })
        await (number === 1 ? transaction.abort() : transaction.commit())
      }
      await producer.close()
    }
  }
}

async function main () {
  const steps = await (library === 'kafkajs' ? kafkajs() : platformatic())
  for (const step of told('STEPS', 'admin produce group transaction').split(' ')) {
    let outcome = ''
    try {
      outcome = (await within(steps[step]())) || ''
    } catch (error) {
      const cause = error.errors && error.errors.length ? error.errors[error.errors.length - 1] : error
      outcome = `${cause.name} ${cause.message}`.replace(/\s+/g, ' ')
    }
    console.log(`${step}\t${outcome}`)
  }
  process.exit(0)
}

main()
