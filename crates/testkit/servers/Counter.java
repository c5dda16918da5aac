// Answers each request with a nonce chosen at the start and the number of requests so far.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

public class Counter {
    public static void main(String[] args) throws Exception {
        String nonce = String.format("%016x", new SecureRandom().nextLong());
        AtomicLong count = new AtomicLong();
        HttpServer server = HttpServer.create(new InetSocketAddress("0.0.0.0", Integer.parseInt(args[0])), 128);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", exchange -> {
            String text = "nonce=" + nonce + " count=" + count.incrementAndGet() + "\n";
            byte[] body = text.getBytes(StandardCharsets.US_ASCII);
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }
}
