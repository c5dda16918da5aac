// Prints what Java's own resolver finds for each name: nothing where there is no such name.
import java.util.Hashtable;
import javax.naming.Context;
import javax.naming.NameNotFoundException;
import javax.naming.NamingException;
import javax.naming.directory.InitialDirContext;

class Resolve {
    public static void main(String[] names) {
        Hashtable<String, String> environment = new Hashtable<>();
        environment.put(Context.INITIAL_CONTEXT_FACTORY, "com.sun.jndi.dns.DnsContextFactory");
        for (String name : names) {
            String found;
            try {
                found = new InitialDirContext(environment).getAttributes("dns:///" + name, new String[] {"A", "AAAA"}).toString();
            } catch (NameNotFoundException missing) {
                found = "";
            } catch (NamingException failure) {
                found = failure.toString();
            }
            System.out.println(name + ": " + found);
        }
    }
}
